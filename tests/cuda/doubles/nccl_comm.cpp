// How the parts of a group come to be done.
#include "nccl_comm.hpp"
#include <cstring>

namespace cuda_double::nccl {
namespace {

using Clock = std::chrono::steady_clock;

const char* name_of(Call call) {
    switch (call) {
    case Call::AllGather: return "AllGather";
    case Call::ReduceScatter: return "ReduceScatter";
    case Call::AllReduce: return "AllReduce";
    case Call::Broadcast: return "Broadcast";
    case Call::Send: return "Send";
    case Call::Receive: return "Recv";
    }
    return "?";
}

template <class Like>
std::string describe(const Like& part) {
    std::string text = std::string("nccl") + name_of(part.call) + " of " + std::to_string(part.count) + " " +
                       type_name(part.type);
    if (part.reduction >= 0) text += ", reduction " + std::to_string(part.reduction);
    if (part.root >= 0) text += ", root " + std::to_string(part.root);
    return text;
}

float from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// To nearest even; NaN stays NaN.
uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
T reduced(T a, T b, int reduction) {
    switch (reduction) {
    case ncclMax: return b > a ? b : a;
    case ncclMin: return b < a ? b : a;
    default: return a + b;
    }
}

// Element i of every rank, in the order of ranks: f32 and bf16 in f32 with one rounding at the end.
template <class Load, class Store>
void reduce_elements(const std::vector<const char*>& inputs, uint64_t count, int reduction, Load load,
                     Store store) {
    for (uint64_t i = 0; i < count; i++) {
        auto sum = load(inputs[0], i);
        for (size_t r = 1; r < inputs.size(); r++) sum = reduced(sum, load(inputs[r], i), reduction);
        store(i, reduction == ncclAvg ? decltype(sum)(sum / inputs.size()) : sum);
    }
}

template <class T>
void reduce_plain(const std::vector<const char*>& inputs, char* to, uint64_t count, int reduction) {
    reduce_elements(
        inputs, count, reduction,
        [](const char* bytes, uint64_t i) {
            T value;
            memcpy(&value, bytes + i * sizeof value, sizeof value);
            return value;
        },
        [=](uint64_t i, T value) { memcpy(to + i * sizeof value, &value, sizeof value); });
}

void reduce_bf16(const std::vector<const char*>& inputs, char* to, uint64_t count, int reduction) {
    reduce_elements(
        inputs, count, reduction,
        [](const char* bytes, uint64_t i) {
            uint16_t bits;
            memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
            return from_bf16(bits);
        },
        [=](uint64_t i, float value) {
            const uint16_t bits = to_bf16(value);
            memcpy(to + i * sizeof bits, &bits, sizeof bits);
        });
}

void reduce(const std::vector<const char*>& inputs, char* to, uint64_t count, int type, int reduction) {
    switch (type) {
    case ncclInt8: return reduce_plain<int8_t>(inputs, to, count, reduction);
    case ncclUint8: return reduce_plain<uint8_t>(inputs, to, count, reduction);
    case ncclInt32: return reduce_plain<int32_t>(inputs, to, count, reduction);
    case ncclUint32: return reduce_plain<uint32_t>(inputs, to, count, reduction);
    case ncclInt64: return reduce_plain<int64_t>(inputs, to, count, reduction);
    case ncclUint64: return reduce_plain<uint64_t>(inputs, to, count, reduction);
    case ncclFloat32: return reduce_plain<float>(inputs, to, count, reduction);
    case ncclBfloat16: return reduce_bf16(inputs, to, count, reduction);
    }
}

// A group on its way, run by the device's thread alone.
class Group {
public:
    Group(std::shared_ptr<Comm> comm, std::vector<Part> parts)
        : comm_(std::move(comm)), parts_(std::move(parts)) {}

    Progress run() {
        if (comm_->aborted) return done();
        // A communicator with an error does nothing more; whoever waits has to abort it.
        if (comm_->error()) return Progress::NotYet;
        waits_for_.clear();
        bool all = true;
        for (Part& part : parts_) all &= part.finished || advance(part);
        if (all) return done();
        look_after_peers();
        return Progress::NotYet;
    }

    bool wanted_by_peers() {
        if (comm_->aborted || comm_->finalizing) return true;
        for (const Part& part : parts_)
            if (!part.finished && wanted(part)) return true;
        return false;
    }

    void report_stall() {
        for (const Part& part : parts_) {
            if (part.finished) continue;
            const std::string what = part.peer < 0 ? "collective " : "message ";
            comm_->fail(ncclSystemError, what + std::to_string(part.number) + ", " + describe(part) +
                                             ", waits for rank " + ranks_text() +
                                             ", which has not called it");
        }
    }

    std::string label() const {
        std::string text = "group of";
        for (size_t i = 0; i < parts_.size() && i < 3; i++) text += (i ? "; " : " ") + describe(parts_[i]);
        return parts_.size() > 3 ? text + "; ..." : text;
    }

private:
    Segment& segment() { return *comm_->segment; }

    Progress done() {
        comm_->n_unfinished--;
        return Progress::Done;
    }

    bool advance(Part& part) {
        if (!part.begun) {
            part.begun = true;
            if (part.call == Call::Receive) segment().own().n_receives_begun[part.peer] = part.number;
            else if (part.call != Call::Send) segment().own().n_collectives_begun = part.number;
        }
        if (!part.sent && !send(part)) return false;
        part.finished =
            part.call == Call::Send || (part.call == Call::Receive ? receive(part) : collect(part));
        return part.finished;
    }

    // Copies into the outbox what this rank gives. Reads device memory now, when the stream has come here.
    bool send(Part& part) {
        const bool alone = segment().n_ranks() == 1 && part.call != Call::Send;
        if (part.call != Call::Receive && !alone) {
            Message head{};
            head.call = part.call;
            head.peer = part.peer;
            head.type = part.type;
            head.reduction = part.reduction;
            head.root = part.root;
            head.number = part.number;
            head.count = part.count;
            head.n_bytes = sent_bytes(part);
            if (!segment().publish(head, part.from)) return false;
        }
        part.sent = true;
        return true;
    }

    uint64_t sent_bytes(const Part& part) {
        const uint64_t n_bytes = part.count * type_bytes(part.type);
        if (part.call == Call::ReduceScatter) return n_bytes * segment().n_ranks();
        if (part.call == Call::Broadcast && part.root != segment().rank()) return 0;
        return n_bytes;
    }

    bool receive(Part& part) {
        Message* message = segment().find(part.peer, false, part.number);
        if (!message) {
            waits_for_.push_back(part.peer);
            return false;
        }
        if (message->type != part.type || message->count != part.count) {
            differ(part, part.peer, *message, "message ");
            return false;
        }
        memcpy(part.to, segment().bytes(part.peer, *message), message->n_bytes);
        Segment::taken(*message);
        return true;
    }

    bool collect(Part& part) {
        const int n = segment().n_ranks(), me = segment().rank();
        std::vector<Message*> messages(n);
        bool all = true;
        for (int r = 0; r < n; r++) {
            if (r == me) continue;
            messages[r] = segment().find(r, true, part.number);
            if (!messages[r]) {
                waits_for_.push_back(r);
                all = false;
            } else if (!agrees(part, *messages[r])) {
                differ(part, r, *messages[r], "collective ");
                return false;
            }
        }
        if (!all) return false;
        std::vector<const char*> inputs(n);
        for (int r = 0; r < n; r++) inputs[r] = r == me ? part.from : segment().bytes(r, *messages[r]);
        finish(part, inputs);
        for (Message* message : messages)
            if (message) Segment::taken(*message);
        return true;
    }

    static bool agrees(const Part& part, const Message& message) {
        return message.call == part.call && message.type == part.type && message.count == part.count &&
               message.reduction == part.reduction && message.root == part.root;
    }

    // Writes the result from every rank's input.
    void finish(const Part& part, std::vector<const char*> inputs) {
        const uint64_t n_bytes = part.count * type_bytes(part.type);
        switch (part.call) {
        case Call::AllGather:
            for (size_t r = 0; r < inputs.size(); r++)
                if (inputs[r] != part.to + r * n_bytes) memcpy(part.to + r * n_bytes, inputs[r], n_bytes);
            break;
        case Call::ReduceScatter:
            for (const char*& input : inputs) input += segment().rank() * n_bytes;
            reduce(inputs, part.to, part.count, part.type, part.reduction);
            break;
        case Call::AllReduce: reduce(inputs, part.to, part.count, part.type, part.reduction); break;
        case Call::Broadcast:
            if (inputs[part.root] != part.to) memcpy(part.to, inputs[part.root], n_bytes);
            break;
        case Call::Send:
        case Call::Receive: break;
        }
    }

    void differ(const Part& part, int rank, const Message& message, const char* what) {
        comm_->fail(ncclInvalidUsage, what + std::to_string(part.number) +
                                          " differs between ranks: " + describe(part) + " here, " +
                                          describe(message) + " on rank " + std::to_string(rank));
    }

    bool wanted(const Part& part) {
        if (part.call == Call::Receive) return false;  // its sender waits for nothing
        if (part.call == Call::Send)
            return segment().place(part.peer).n_receives_begun[segment().rank()] >= part.number;
        for (int r = 0; r < segment().n_ranks(); r++)
            if (r != segment().rank() && segment().place(r).n_collectives_begun >= part.number) return true;
        return false;
    }

    // Now and then: whether those it waits for still live.
    void look_after_peers() {
        if (Clock::now() < next_look_) return;
        next_look_ = Clock::now() + std::chrono::milliseconds(20);
        for (const int rank : waits_for_) {
            if (!segment().is_gone(rank)) continue;
            // What it sent before it went is still good.
            bool came = true;
            for (Part& part : parts_) came &= part.finished || advance(part);
            if (came || comm_->error()) return;
            comm_->fail(ncclRemoteError, "rank " + std::to_string(rank) + " (process " +
                                             std::to_string(segment().place(rank).pid) + ") is gone");
            return;
        }
    }

    std::string ranks_text() const {
        std::string text;
        for (const int rank : waits_for_) text += (text.empty() ? "" : ", ") + std::to_string(rank);
        return text;
    }

    const std::shared_ptr<Comm> comm_;
    std::vector<Part> parts_;
    std::vector<int> waits_for_;
    Clock::time_point next_look_{};
};

}  // namespace

size_t type_bytes(int type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64: return 8;
    default: return 0;
    }
}

const char* type_name(int type) {
    switch (type) {
    case ncclInt8: return "int8";
    case ncclUint8: return "uint8";
    case ncclInt32: return "int32";
    case ncclUint32: return "uint32";
    case ncclInt64: return "int64";
    case ncclUint64: return "uint64";
    case ncclFloat32: return "float32";
    case ncclBfloat16: return "bfloat16";
    default: return "elements of an unknown type";
    }
}

void Comm::fail(int code, const std::string& why) {
    int none = 0;
    if (!error_.compare_exchange_strong(none, code)) return;
    const std::lock_guard<std::mutex> lock(text_mutex_);
    last_error_ = why;
    complain("NCCL: %s", why.c_str());
}

std::string Comm::last_error() const {
    const std::lock_guard<std::mutex> lock(text_mutex_);
    return last_error_;
}

bool Comm::try_to_join() {
    if (joined) return true;
    const int n = segment->n_ranks();
    for (int r = 0; r < n; r++) {
        if (segment->is_gone(r)) {
            fail(ncclRemoteError, "rank " + std::to_string(r) + " went away before all had joined");
            return false;
        }
    }
    if (!segment->missing().empty()) return false;
    segment->remove_name();
    for (int r = 0; r < n; r++) {
        for (int q = 0; q < r; q++) {
            if (strcmp(segment->place(r).device, segment->place(q).device) != 0) continue;
            fail(ncclInvalidUsage, "ranks " + std::to_string(q) + " and " + std::to_string(r) +
                                       " are both on the device " + segment->place(r).device);
            return false;
        }
    }
    return joined = true;
}

void launch(const std::shared_ptr<Comm>& comm, Stream* stream, std::vector<Part> parts) {
    auto group = std::make_shared<Group>(comm, std::move(parts));
    comm->n_unfinished++;
    Operation operation;
    operation.label = group->label();
    operation.run = [group] { return group->run(); };
    operation.wanted_by_peers = [group] { return group->wanted_by_peers(); };
    operation.on_stall = [group] { group->report_stall(); };
    executor::enqueue(stream, std::move(operation));
}

}  // namespace cuda_double::nccl
