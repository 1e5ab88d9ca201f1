// SPDX-License-Identifier: Apache-2.0
// Encoding of requests and log records, and properties of a request.
#include "agreement/message.h"

#include <limits>

#include "base/wire.h"

namespace hvd {
namespace {

// The smallest encoded entry (slot and flag) and name (its length). A count is refused before anything is allocated if
// the rest of the input could not hold that many.
constexpr size_t kMinEntryBytes = sizeof(uint32_t) + sizeof(uint8_t);
constexpr size_t kMinNameBytes = sizeof(uint32_t);
constexpr size_t kTurnBytes = sizeof(int32_t) + sizeof(uint32_t) + sizeof(uint64_t);

template <typename E>
void PutEnum(std::string* out, E value) {
  wire::Put(out, static_cast<std::underlying_type_t<E>>(value));
}

template <typename E>
bool GetEnum(std::string_view* in, E last, E* value) {
  using Raw = std::underlying_type_t<E>;
  Raw raw = 0;
  if (!wire::Get(in, &raw) || raw < Raw{0} || raw > static_cast<Raw>(last)) return false;
  *value = static_cast<E>(raw);
  return true;
}

constexpr uint8_t kCached = 1, kDirect = 2;

bool GetFlags(std::string_view* in, Entry* entry) {
  uint8_t raw = 0;
  if (!wire::Get(in, &raw) || raw > (kCached | kDirect)) return false;
  entry->cached = raw & kCached;
  entry->direct = raw & kDirect;
  return true;
}

bool GetCount(std::string_view* in, size_t min_item_bytes, uint32_t* count) {
  return wire::Get(in, count) && *count <= in->size() / min_item_bytes;
}

bool GetShape(std::string_view* in, std::vector<int64_t>* shape) {
  if (!wire::GetVector(in, shape)) return false;
  for (int64_t extent : *shape) {
    if (extent < 0) return false;
  }
  return true;
}

void PutEntry(const Entry& entry, std::string* out) {
  wire::Put(out, entry.slot);
  wire::Put<uint8_t>(out, static_cast<uint8_t>((entry.cached ? kCached : 0) | (entry.direct ? kDirect : 0)));
  if (entry.cached) return;
  Encode(entry.request, out);
  wire::PutVector(out, entry.sizes);
  PutEnum(out, entry.algorithm);
}

bool GetEntry(std::string_view* in, Entry* entry) {
  if (!wire::Get(in, &entry->slot) || !GetFlags(in, entry)) return false;
  return entry->cached || (Decode(in, &entry->request) && wire::GetVector(in, &entry->sizes) &&
                           GetEnum(in, kLastHostAlgorithm, &entry->algorithm));
}

bool GetEntries(std::string_view* in, std::vector<Entry>* entries) {
  uint32_t count = 0;
  if (!GetCount(in, kMinEntryBytes, &count)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!GetEntry(in, &entries->emplace_back())) return false;
  }
  return true;
}

bool GetNames(std::string_view* in, std::vector<std::string>* names) {
  uint32_t count = 0;
  if (!GetCount(in, kMinNameBytes, &count)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!wire::GetString(in, &names->emplace_back())) return false;
  }
  return true;
}

void PutTuning(const Tuning& tuning, std::string* out) {
  wire::Put(out, tuning.fusion_threshold);
  wire::Put(out, tuning.cycle_time_us);
  wire::Put(out, tuning.chunk_bytes);
  wire::Put<uint8_t>(out, tuning.final);
}

bool GetTuning(std::string_view* in, Tuning* tuning) {
  uint8_t final = 0;
  const bool whole = wire::Get(in, &tuning->fusion_threshold) && wire::Get(in, &tuning->cycle_time_us) &&
                     wire::Get(in, &tuning->chunk_bytes) && wire::Get(in, &final);
  tuning->final = final == 1;
  return whole && final <= 1;
}

bool HasRoundsOrNone(const Record& record) {
  const size_t needed = record.kind == RecordKind::kEvict ? record.evicted.size() : record.names.size();
  return record.rounds.empty() || record.rounds.size() == needed;
}

bool GetTurns(std::string_view* in, std::vector<Turn>* turns) {
  uint32_t count = 0;
  if (!GetCount(in, kTurnBytes, &count)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!Decode(in, &turns->emplace_back())) return false;
  }
  return true;
}

}  // namespace

bool Request::operator==(const Request& other) const {
  return kind == other.kind && dtype == other.dtype && op == other.op && root == other.root && device == other.device &&
         SameFactor(prescale, other.prescale) && SameFactor(postscale, other.postscale) &&
         group_size == other.group_size && place == other.place && shape == other.shape && splits == other.splits &&
         name == other.name && group == other.group;
}

int64_t Request::Elements() const {
  int64_t elements = 1;
  bool overflow = false;
  for (int64_t extent : shape) {
    if (extent == 0) return 0;
    overflow |= __builtin_mul_overflow(elements, extent, &elements);
  }
  return overflow ? std::numeric_limits<int64_t>::max() : elements;
}

size_t Request::Bytes() const {
  size_t bytes = 0;
  const bool overflow = __builtin_mul_overflow(static_cast<size_t>(Elements()), SizeOf(dtype), &bytes);
  return overflow ? std::numeric_limits<size_t>::max() : bytes;
}

size_t Request::RowBytes() const {
  size_t bytes = SizeOf(dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<size_t>(shape[i]);
  return bytes;
}

void Encode(const Request& request, std::string* out) {
  PutEnum(out, request.kind);
  PutEnum(out, request.dtype);
  PutEnum(out, request.op);
  wire::Put(out, request.root);
  wire::Put(out, request.device);
  wire::Put(out, request.prescale);
  wire::Put(out, request.postscale);
  wire::PutString(out, request.name);
  wire::PutVector(out, request.shape);
  wire::PutVector(out, request.splits);
  wire::PutString(out, request.group);
  wire::Put(out, request.group_size);
  wire::Put(out, request.place);
}

bool Decode(std::string_view* in, Request* request) {
  return GetEnum(in, kLastAgreed, &request->kind) &&
         GetEnum(in, static_cast<DType>(kDTypeCount - 1), &request->dtype) &&
         GetEnum(in, ReduceOp::kProduct, &request->op) && wire::Get(in, &request->root) &&
         wire::Get(in, &request->device) && wire::Get(in, &request->prescale) && wire::Get(in, &request->postscale) &&
         wire::GetString(in, &request->name) && GetShape(in, &request->shape) &&
         wire::GetVector(in, &request->splits) && wire::GetString(in, &request->group) &&
         wire::Get(in, &request->group_size) && wire::Get(in, &request->place);
}

void Encode(const Record& record, std::string* out) {
  PutEnum(out, record.kind);
  wire::Put(out, record.sequence);
  wire::Put<uint32_t>(out, static_cast<uint32_t>(record.entries.size()));
  for (const Entry& entry : record.entries) PutEntry(entry, out);
  wire::Put<uint32_t>(out, static_cast<uint32_t>(record.names.size()));
  for (const std::string& name : record.names) wire::PutString(out, name);
  wire::PutVector(out, record.rounds);
  PutEnum(out, record.error.code);
  wire::PutString(out, record.error.text);
  wire::PutVector(out, record.evicted);
  if (record.kind == RecordKind::kTune) PutTuning(record.tuning, out);
  if (record.kind != RecordKind::kTurns) return;
  wire::Put<uint32_t>(out, static_cast<uint32_t>(record.turns.size()));
  for (const Turn& turn : record.turns) Encode(turn, out);
}

void Encode(const Turn& turn, std::string* out) {
  wire::Put(out, turn.set);
  wire::Put(out, turn.epoch);
  wire::Put(out, turn.sequence);
}

bool Decode(std::string_view* in, Turn* turn) {
  return wire::Get(in, &turn->set) && wire::Get(in, &turn->epoch) && wire::Get(in, &turn->sequence);
}

bool Decode(std::string_view* in, Record* record) {
  *record = Record();  // a reused record must not keep old entries or names
  return GetEnum(in, RecordKind::kTurns, &record->kind) && wire::Get(in, &record->sequence) &&
         GetEntries(in, &record->entries) && GetNames(in, &record->names) && wire::GetVector(in, &record->rounds) &&
         GetEnum(in, Code::kTimeout, &record->error.code) && wire::GetString(in, &record->error.text) &&
         wire::GetVector(in, &record->evicted) && HasRoundsOrNone(*record) &&
         (record->kind != RecordKind::kTune || GetTuning(in, &record->tuning)) &&
         (record->kind != RecordKind::kTurns || GetTurns(in, &record->turns));
}

}  // namespace hvd
