// SPDX-License-Identifier: Apache-2.0
// Messages with which ranks agree on what runs next: requests go to the leader, an ordered log of entries comes back.
// The encoding is little-endian and length-checked; each Decode returns false on malformed input and never reads past
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace hvd {

// Description of one collective on one tensor by one rank, as it is compared across ranks.
struct Request {
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = -1;    // broadcast: global rank of the root
  int32_t device = -1;  // -1 is the CPU
  double prescale = 1.0;
  double postscale = 1.0;  // an average arrives as a sum; its factor 1/N is applied where the batch runs
  std::string name;
  std::vector<int64_t> shape;
  // For kAlltoall: the rows for each member. For kAddProcessSet: the sender's arena offset, then the ranks. For
  // kRemoveProcessSet: the id of the set.
  std::vector<int64_t> splits;
  std::string group;  // base name of the group; empty for a tensor without a group
  uint32_t group_size = 0;
  int64_t place = -1;  // in-place allreduce in memory that every member reaches: offset in the sender's arena, else -1

  bool operator==(const Request& other) const;
  int64_t Elements() const;
  size_t Bytes() const;
  size_t RowBytes() const;  // bytes of one row (one index of the first dimension)
  // Return true if the user passed no name; a number that is never used again stands for it.
  bool IsNumbered() const { return name.find(".noname.") != std::string::npos; }
};

constexpr uint32_t kNoSlot = 0xffffffffu;
constexpr uint32_t kNoRound = 0xffffffffu;
constexpr size_t kFewMembers = 8;  // up to this size of a set, all members are connected to each other

// One tensor of a batch. `sizes` holds values that only the leader knows, once all members have reported. kAllgather:
// the rows of each member. kAlltoall: the largest split of all; in small sets or on devices also the splits of each
// member. kJoin: the last rank that joined. kAddProcessSet: the new set's id and epoch, and the arena offset of each
// rank of the world. kAllreduce: the offset of each member's tensor, if all have one. Other kinds: empty.
struct Entry {
  uint32_t slot = kNoSlot;  // cache slot of the tensor: where to store it the first time, and where it is stored later
  bool cached = false;      // only `slot` is sent, because the members know the description
  // For kAllreduce: algorithm between hosts; follows from the description.
  HostAlgorithm algorithm = HostAlgorithm::kDirect;
  bool direct = false;  // kAllreduce: all members take part with their tensors at the offsets in `sizes`
  Request request;      // the agreed description (shape: the first member's); once cached, this member's own
  int32_t device = -1;  // the first member's device number, on all members (see device_names.h); not sent
  std::vector<int64_t> sizes;
};

// The entries of one batch. Cached entries are shared with the cache, not copied.
using Entries = std::vector<std::shared_ptr<const Entry>>;

enum class RecordKind : uint8_t { kBatch = 0, kError = 1, kEvict = 2, kTune = 3, kTurns = 4 };

// Launch slot of a batch among those of all sets on GPUs (see launch_order.h).
struct Turn {
  int32_t set = 0;
  uint32_t epoch = 0;
  uint64_t sequence = 0;  // number of the batch's record in the set's log

  bool operator==(const Turn& other) const {
    return set == other.set && epoch == other.epoch && sequence == other.sequence;
  }
};

// Values that the autotuner may change while the job runs.
struct Tuning {
  uint64_t fusion_threshold = 0;  // bytes
  uint64_t cycle_time_us = 0;
  uint64_t chunk_bytes = 0;
  bool final = false;  // true once tuning is over

  bool operator==(const Tuning& other) const {
    return fusion_threshold == other.fusion_threshold && cycle_time_us == other.cycle_time_us &&
           chunk_bytes == other.chunk_bytes;
  }
};

// One record of the leader's log. Every member applies the records of its set in the order of `sequence`.
struct Record {
  RecordKind kind = RecordKind::kBatch;
  uint64_t sequence = 0;
  std::vector<Entry> entries;      // kBatch: tensors to run as one fused collective
  std::vector<std::string> names;  // kError: tensors that fail with `error`
  // Rounds of the fast path (see express.h); empty if no rounds are counted. In a kError record, for each name: the
  // round of its slot that fails, or kNoRound. In a kEvict record, for each slot: the leader has finished all rounds
  // before this one, and no rank will ever finish this or a later one.
  std::vector<uint32_t> rounds;
  Status error;
  std::vector<uint32_t> evicted;  // kEvict: cache slots to remove
  Tuning tuning;                  // kTune: values for all records that follow
  std::vector<Turn> turns;        // kTurns: launch slots, in this order
};

void Encode(const Request& request, std::string* out);
bool Decode(std::string_view* in, Request* request);
void Encode(const Record& record, std::string* out);
bool Decode(std::string_view* in, Record* record);
void Encode(const Turn& turn, std::string* out);
bool Decode(std::string_view* in, Turn* turn);

}  // namespace hvd
