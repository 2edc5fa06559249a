// What the ranks of one communicator share: a piece of memory with a place for each rank, and its outbox.
//
// Data travels through outboxes: a rank copies what it sends into its own, and those who take it count down.
// Only the owner writes an outbox, so no lock is needed. The memory has a name in /dev/shm only until all
// ranks have joined; after that the system frees it when the last process ends, however that ends. (A name
// whose ranks died or gave up before that is removed by the next run.) A byte of the file stays locked by
// each living rank: the lock tells the dead from the slow.
#pragma once
#include "common.hpp"
#include <atomic>
#include <cstdint>
#include <string>

namespace cuda_double::nccl {

constexpr int MAX_RANKS = 64;
constexpr uint64_t N_SLOTS = 1024;

enum class Call : int { AllGather, ReduceScatter, AllReduce, Broadcast, Send, Receive };

// What a rank put into its outbox: its part of a collective, or something for one receiver.
struct Message {
    Call call;
    int peer;          // the receiver of a Send; -1: every other rank
    int type;          // ncclDataType_t
    int reduction;     // ncclRedOp_t; -1 where nothing is reduced
    int root;          // -1 where there is none
    uint64_t number;   // of the collective in the communicator, or of the Send to this peer; from 1
    uint64_t count;    // as given to the call
    uint64_t offset, n_bytes;  // in the ring of the outbox
    uint64_t ring_end;         // where the ring is free again once the message has been taken
    std::atomic<int> n_readers;  // who have not taken it yet
};

struct Outbox {
    std::atomic<uint64_t> n_published;  // messages so far; number i lies in slots[i % N_SLOTS]
    std::atomic<uint64_t> n_retired;    // those before are taken by all
    Message slots[N_SLOTS];
};

enum class Presence : int { Absent = 0, Joined = 1, Left = 2 };

struct Place {
    std::atomic<int> presence;
    std::atomic<int> pid;
    char device[64];                                    // no two ranks may have the same one
    std::atomic<uint64_t> n_collectives_begun;          // what peers see it wait for
    std::atomic<uint64_t> n_receives_begun[MAX_RANKS];  // from each sender
    Outbox outbox;
};

class Segment {
public:
    // Joins the ranks that know this name. Null, and a word in *error, where that cannot be.
    static Segment* join(const std::string& name, int n_ranks, int rank, const std::string& device,
                         std::string* error);
    // Leaves: peers that still need this rank see it as gone.
    ~Segment();

    int n_ranks() const { return n_ranks_; }
    int rank() const { return rank_; }
    Place& place(int rank) { return places_[rank]; }
    Place& own() { return places_[rank_]; }

    // Ranks that have not joined yet, as text; empty once all have.
    std::string missing();
    // Removes the name; the memory stays for those who have it.
    void remove_name();
    // The rank's process ended, or it left.
    bool is_gone(int rank);

    // Puts a message into the own outbox, with n_bytes from `bytes`. False while there is no room.
    bool publish(const Message& head, const void* bytes);
    // The message in a rank's outbox; null while it is not there.
    Message* find(int from, bool collective, uint64_t number);
    const char* bytes(int from, const Message& message) const;
    static void taken(Message& message) { message.n_readers.fetch_sub(1); }

    static uint64_t ring_bytes();

private:
    Segment() = default;
    void retire();

    std::string name_;
    int file_ = -1;
    int n_ranks_ = 0, rank_ = 0;
    size_t n_bytes_ = 0;
    Place* places_ = nullptr;
    char* rings_ = nullptr;
    uint64_t ring_head_ = 0, ring_tail_ = 0;  // of the own ring, counted without wrapping
};

// A name nobody has used. Also removes names left behind by processes that died while their ranks were
// joining.
std::string fresh_segment_name();

}  // namespace cuda_double::nccl
