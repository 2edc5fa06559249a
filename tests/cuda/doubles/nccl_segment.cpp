// The shared memory of a communicator.
#include "nccl_segment.hpp"
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cuda_double::nccl {
namespace {

constexpr char NAME_HEAD[] = "zero3-nccl-double-";

// Locks, or asks about, byte `rank` of the file, for the open file and not for the process.
int lock_byte(int file, int command, int rank, struct flock* lock) {
    *lock = {};
    lock->l_type = F_WRLCK;
    lock->l_whence = SEEK_SET;
    lock->l_start = rank;
    lock->l_len = 1;
    return fcntl(file, command, lock);
}

}  // namespace

uint64_t Segment::ring_bytes() {
    static const uint64_t n_bytes = number_setting("CUDA_DOUBLE_NCCL_RING", 32 << 20);
    return n_bytes;
}

std::string fresh_segment_name() {
    if (DIR* directory = opendir("/dev/shm")) {
        while (const dirent* entry = readdir(directory)) {
            if (strncmp(entry->d_name, NAME_HEAD, sizeof NAME_HEAD - 1) != 0) continue;
            const int maker = atoi(entry->d_name + sizeof NAME_HEAD - 1);
            if (maker > 0 && kill(maker, 0) != 0 && errno == ESRCH)
                shm_unlink((std::string("/") + entry->d_name).c_str());
        }
        closedir(directory);
    }
    static std::atomic<int> n_names{0};
    return std::string("/") + NAME_HEAD + std::to_string(getpid()) + "-" + std::to_string(n_names++);
}

Segment* Segment::join(const std::string& name, int n_ranks, int rank, const std::string& device,
                       std::string* error) {
    auto* segment = new Segment;
    segment->name_ = name;
    segment->n_ranks_ = n_ranks;
    segment->rank_ = rank;
    const size_t places_bytes = sizeof(Place) * n_ranks;
    segment->n_bytes_ = places_bytes + ring_bytes() * n_ranks;
    segment->file_ = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    // All zeros, which is what every field begins with; the same length whoever comes first.
    if (segment->file_ < 0 || ftruncate(segment->file_, segment->n_bytes_) != 0) {
        *error = "shared memory " + name + ": " + strerror(errno);
        delete segment;
        return nullptr;
    }
    void* bytes = mmap(nullptr, segment->n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, segment->file_, 0);
    if (bytes == MAP_FAILED) {
        *error = "shared memory " + name + ": " + strerror(errno);
        delete segment;
        return nullptr;
    }
    segment->places_ = static_cast<Place*>(bytes);
    segment->rings_ = static_cast<char*>(bytes) + places_bytes;
    struct flock lock;
    if (lock_byte(segment->file_, F_OFD_SETLK, rank, &lock) != 0 ||
        segment->own().presence != int(Presence::Absent)) {
        *error = "rank " + std::to_string(rank) + " has joined with this id before";
        munmap(bytes, segment->n_bytes_);
        segment->places_ = nullptr;
        delete segment;
        return nullptr;
    }
    segment->own().pid = getpid();
    snprintf(segment->own().device, sizeof segment->own().device, "%s", device.c_str());
    segment->own().presence = int(Presence::Joined);
    return segment;
}

Segment::~Segment() {
    if (places_) {
        own().presence = int(Presence::Left);
        // Whoever has yet to come shall find that somebody has left, and not an empty place of the same name;
        // where nobody comes, the next run removes it.
        if (missing().empty()) remove_name();
        munmap(places_, n_bytes_);
    }
    if (file_ >= 0) close(file_);
}

std::string Segment::missing() {
    std::string ranks;
    for (int r = 0; r < n_ranks_; r++)
        if (place(r).presence == int(Presence::Absent))
            ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    return ranks;
}

void Segment::remove_name() { shm_unlink(name_.c_str()); }

bool Segment::is_gone(int rank) {
    if (place(rank).presence == int(Presence::Left)) return true;
    if (place(rank).presence == int(Presence::Absent)) return false;
    struct flock lock;
    return lock_byte(file_, F_OFD_GETLK, rank, &lock) == 0 && lock.l_type == F_UNLCK && rank != rank_;
}

void Segment::retire() {
    Outbox& box = own().outbox;
    uint64_t oldest = box.n_retired;
    while (oldest < box.n_published && box.slots[oldest % N_SLOTS].n_readers == 0)
        ring_tail_ = box.slots[oldest++ % N_SLOTS].ring_end;
    box.n_retired = oldest;
    // An empty ring begins at its start again, so that small messages touch few pages.
    if (oldest == box.n_published) ring_head_ = ring_tail_ = 0;
}

bool Segment::publish(const Message& head, const void* bytes) {
    retire();
    Outbox& box = own().outbox;
    const uint64_t index = box.n_published;
    if (index - box.n_retired == N_SLOTS) return false;
    // In one piece: what does not fit before the end of the ring begins at its start.
    uint64_t begin = ring_head_;
    if (begin % ring_bytes() + head.n_bytes > ring_bytes()) begin = (begin / ring_bytes() + 1) * ring_bytes();
    if (begin + head.n_bytes - ring_tail_ > ring_bytes()) return false;
    if (head.n_bytes > 0) memcpy(rings_ + rank_ * ring_bytes() + begin % ring_bytes(), bytes, head.n_bytes);
    Message& slot = box.slots[index % N_SLOTS];
    slot.call = head.call;
    slot.peer = head.peer;
    slot.type = head.type;
    slot.reduction = head.reduction;
    slot.root = head.root;
    slot.number = head.number;
    slot.count = head.count;
    slot.n_bytes = head.n_bytes;
    slot.offset = begin % ring_bytes();
    slot.ring_end = ring_head_ = begin + head.n_bytes;
    slot.n_readers = head.peer >= 0 ? 1 : n_ranks_ - 1;
    box.n_published = index + 1;
    return true;
}

Message* Segment::find(int from, bool collective, uint64_t number) {
    Outbox& box = place(from).outbox;
    const uint64_t end = box.n_published;
    for (uint64_t i = box.n_retired; i < end; i++) {
        Message& message = box.slots[i % N_SLOTS];
        if (message.number != number || (message.call != Call::Send) != collective) continue;
        // What was looked for is not retired before it is taken here; a slot that is in use for something
        // else is.
        if ((collective || message.peer == rank_) && i >= box.n_retired) return &message;
    }
    return nullptr;
}

const char* Segment::bytes(int from, const Message& message) const {
    return rings_ + from * ring_bytes() + message.offset;
}

}  // namespace cuda_double::nccl
