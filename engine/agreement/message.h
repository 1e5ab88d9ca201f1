// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other while they agree on what runs next: requests up, an ordered log of entries down.
// Encoding is little-endian and length-checked; Decode* return false on any malformed input and never read past it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace hvd {

// One rank's wish to run one collective on one tensor, as it is compared across ranks.
struct Request {
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = -1;    // broadcast: global rank
  int32_t device = -1;  // -1 is the CPU
  double prescale = 1.0;
  double postscale = 1.0;  // Average arrives here as Sum; its 1/N is added where the batch runs
  std::string name;
  std::vector<int64_t> shape;
  // kAlltoall: rows for each member. kAddProcessSet: {arena offset of the sender, ranks...}.
  // kRemoveProcessSet: {set id}.
  std::vector<int64_t> splits;
  std::string group;  // base name of the group, empty for a tensor of its own
  uint32_t group_size = 0;
  int64_t place = -1;  // kAllreduce in place, in memory that every member reaches: offset in the sender's arena

  bool operator==(const Request& other) const;
  int64_t Elements() const;
  size_t Bytes() const;
  size_t RowBytes() const;  // of one index of the first dimension
  // The user passed no name: a number stands for it, which never comes again.
  bool IsNumbered() const { return name.find(".noname.") != std::string::npos; }
};

constexpr uint32_t kNoSlot = 0xffffffffu;
constexpr uint32_t kNoRound = 0xffffffffu;
constexpr size_t kFewMembers = 8;  // so few may all talk to each other and know all about each other

// One tensor of a batch, or one error. `sizes` is what only the leader knows after hearing everyone, by member index:
// kAllgather: rows of each member. kAlltoall: {largest split of all, and among few members the splits of each}.
// kJoin: {last rank that joined}. kAddProcessSet: {new set id, epoch, arena offset of each rank of the world}.
// kAllreduce: place of each member, if all have one. Others: empty.
struct Entry {
  uint32_t slot = kNoSlot;  // cache slot to remember it under (first time) or that it was found under (afterwards)
  bool cached = false;      // the description is known by `slot` alone: the rest is left out on the wire
  HostAlgorithm algorithm = HostAlgorithm::kDirect;  // kAllreduce: between hosts; follows from the description
  bool direct = false;  // kAllreduce: all members take part with their tensors at the places in `sizes`
  Request request;      // the agreed description (shape: the first member's); once cached, this member's own
  int32_t device = -1;  // the first member's, always and on all members (see device_names.h); not on the wire
  std::vector<int64_t> sizes;
};

// The entries of one batch. What is cached is shared with the cache, not copied.
using Entries = std::vector<std::shared_ptr<const Entry>>;

enum class RecordKind : uint8_t { kBatch = 0, kError = 1, kEvict = 2, kTune = 3, kTurns = 4 };

// When a batch may be launched on GPUs, among those of all sets (see launch_order.h).
struct Turn {
  int32_t set = 0;
  uint32_t epoch = 0;
  uint64_t sequence = 0;  // of the batch's record in the set's log

  bool operator==(const Turn& other) const {
    return set == other.set && epoch == other.epoch && sequence == other.sequence;
  }
};

// What the autotuner may change while the job runs.
struct Tuning {
  uint64_t fusion_threshold = 0;  // bytes
  uint64_t cycle_time_us = 0;
  uint64_t chunk_bytes = 0;
  bool final = false;  // tuning is over

  bool operator==(const Tuning& other) const {
    return fusion_threshold == other.fusion_threshold && cycle_time_us == other.cycle_time_us &&
           chunk_bytes == other.chunk_bytes;
  }
};

// One record of the leader's log. Every member applies the records of its set in the order of `sequence`.
struct Record {
  RecordKind kind = RecordKind::kBatch;
  uint64_t sequence = 0;
  std::vector<Entry> entries;      // kBatch: run as one fused collective; kind, dtype, op and factors agree
  std::vector<std::string> names;  // kError: tensors that fail with `error`
  // See express.h; left out where no rounds are counted. kError, by name: the round of its slot that fails, or
  // kNoRound. kEvict, by slot: the leader has finished all rounds before this one, and nobody will ever finish this or
  // a later one.
  std::vector<uint32_t> rounds;
  Status error;
  std::vector<uint32_t> evicted;  // kEvict: cache slots to forget
  Tuning tuning;                  // kTune: holds for all records that follow
  std::vector<Turn> turns;        // kTurns: in this order
};

void Encode(const Request& request, std::string* out);
bool Decode(std::string_view* in, Request* request);
void Encode(const Record& record, std::string* out);
bool Decode(std::string_view* in, Record* record);
void Encode(const Turn& turn, std::string* out);
bool Decode(std::string_view* in, Turn* turn);

}  // namespace hvd
