// SPDX-License-Identifier: Apache-2.0
#include "agreement/control.h"

#include "base/wire.h"

namespace hvd::control {
namespace {

void Begin(std::string* out, Type type, SetTag set) {
  wire::Put(out, static_cast<uint8_t>(type));
  wire::Put(out, set.id);
  wire::Put(out, set.epoch);
}

}  // namespace

std::string EncodeHeader(Type type, SetTag set) {
  std::string out;
  Begin(&out, type, set);
  return out;
}

void AddSlot(std::string* slots, uint32_t slot) { wire::Put(slots, slot); }

std::string EncodeReady(SetTag set, int member, uint64_t seen, std::string_view slots) {
  std::string out = EncodeHeader(Type::kReady, set);
  wire::Put(&out, static_cast<uint32_t>(member));
  wire::Put(&out, seen);
  out.append(slots);
  return out;
}

std::string EncodeRequest(SetTag set, int member, const Request& request) {
  std::string out = EncodeHeader(Type::kRequest, set);
  wire::Put(&out, static_cast<uint32_t>(member));
  hvd::Encode(request, &out);
  return out;
}

std::string EncodeGone(SetTag set, int rank, uint64_t applied) {
  std::string out = EncodeHeader(Type::kGone, set);
  wire::Put(&out, static_cast<int32_t>(rank));
  wire::Put(&out, applied);
  return out;
}

std::string EncodeBye(const std::vector<Finished>& finished) {
  std::string out = EncodeHeader(Type::kBye);
  for (const Finished& one : finished) wire::Put(&out, one);
  return out;
}

std::string EncodeExpress(SetTag set, const Part& part, size_t room) {
  std::string out;
  out.reserve(kHeaderBytes + sizeof part + room);
  Begin(&out, Type::kExpress, set);
  wire::Put(&out, part);
  return out;
}

std::string EncodeExpress(SetTag set, const Part& part, const Place& place) {
  std::string out;
  out.reserve(kHeaderBytes + sizeof part + sizeof place);
  Begin(&out, Type::kExpressPlace, set);
  wire::Put(&out, part);
  wire::Put(&out, place);
  return out;
}

std::string EncodeExpressGone(SetTag set, uint64_t up_to) {
  std::string out = EncodeHeader(Type::kExpressGone, set);
  wire::Put(&out, up_to);
  return out;
}

std::string EncodeExpressOthers(SetTag set, const Passed& passed) {
  std::string out = EncodeHeader(Type::kExpressOthers, set);
  wire::Put(&out, passed);
  return out;
}

void AddOther(std::string* message, const Other& other, const std::byte* bytes) {
  wire::Put(message, other);
  message->append(reinterpret_cast<const char*>(bytes), other.bytes);
}

std::string EncodeAbort(int lost_rank, std::string_view why) {
  std::string out = EncodeHeader(Type::kAbort);
  wire::Put(&out, static_cast<int32_t>(lost_rank));
  wire::PutString(&out, why);
  return out;
}

std::string EncodePing() { return EncodeHeader(Type::kPing); }

std::string EncodeOffer(const Offer& offer) {
  std::string out = EncodeHeader(Type::kOffer);
  wire::Put(&out, offer.id);
  wire::Put(&out, offer.tag);
  wire::Put(&out, offer.bytes);
  wire::Put(&out, offer.region);
  wire::PutString(&out, offer.card);
  return out;
}

std::string EncodeAccept(const Accept& accept) {
  std::string out = EncodeHeader(Type::kAccept);
  wire::Put(&out, accept.id);
  wire::Put(&out, accept.bytes);
  wire::Put(&out, accept.region);
  wire::Put(&out, accept.by_slots);
  return out;
}

bool Decode(std::string_view* in, Header* header) {
  uint8_t type = 0;
  if (!wire::Get(in, &type) || !wire::Get(in, &header->set) || !wire::Get(in, &header->epoch)) return false;
  if (type < static_cast<uint8_t>(Type::kReady) || type > static_cast<uint8_t>(Type::kExpressOthers)) return false;
  header->type = static_cast<Type>(type);
  return true;
}

Type TypeOf(std::string_view message) { return static_cast<Type>(message.front()); }

bool DecodeReport(Type type, std::string_view* in, Report* report) {
  if (!wire::Get(in, &report->member)) return false;
  if (type == Type::kRequest) {
    report->has_request = true;
    return hvd::Decode(in, &report->request);
  }
  if (!wire::Get(in, &report->seen) || in->size() % sizeof(uint32_t)) return false;
  report->slots.resize(in->size() / sizeof(uint32_t));
  for (uint32_t& slot : report->slots) wire::Get(in, &slot);
  return true;
}

bool DecodeGone(std::string_view* in, int32_t* rank, uint64_t* applied) {
  return wire::Get(in, rank) && wire::Get(in, applied) && in->empty();
}

bool DecodeBye(std::string_view* in, std::vector<Finished>* finished) {
  finished->resize(in->size() / sizeof(Finished));
  for (Finished& one : *finished) wire::Get(in, &one);
  return in->empty();
}

bool DecodeExpress(std::string_view* in, Part* part) { return wire::Get(in, part); }
bool DecodePlace(std::string_view* in, Place* place) { return wire::Get(in, place) && in->empty(); }

bool DecodeExpressGone(std::string_view* in, uint64_t* up_to) { return wire::Get(in, up_to) && in->empty(); }

bool DecodeExpressOthers(std::string_view* in, Passed* passed) { return wire::Get(in, passed) && !in->empty(); }

bool DecodeOther(std::string_view* in, Other* other, std::string_view* bytes) {
  if (!wire::Get(in, other) || in->size() < other->bytes) return false;
  *bytes = in->substr(0, other->bytes);
  in->remove_prefix(other->bytes);
  return true;
}

bool DecodeAbort(std::string_view* in, int32_t* lost_rank, std::string* why) {
  return wire::Get(in, lost_rank) && wire::GetString(in, why);
}

void Encode(const StallNotice& notice, std::string* out) {
  wire::PutString(out, notice.name);
  wire::PutString(out, notice.text);
  wire::PutVector(out, notice.asked);
}

bool Decode(std::string_view* in, StallNotice* notice) {
  return wire::GetString(in, &notice->name) && wire::GetString(in, &notice->text) &&
         wire::GetVector(in, &notice->asked);
}

void Encode(const StackAnswer& answer, std::string* out) {
  wire::PutString(out, answer.name);
  wire::PutString(out, answer.text);
}

bool Decode(std::string_view* in, StackAnswer* answer) {
  return wire::GetString(in, &answer->name) && wire::GetString(in, &answer->text);
}

bool DecodeOffer(std::string_view* in, Offer* offer) {
  return wire::Get(in, &offer->id) && wire::Get(in, &offer->tag) && wire::Get(in, &offer->bytes) &&
         wire::Get(in, &offer->region) && wire::GetString(in, &offer->card);
}
bool DecodeAccept(std::string_view* in, Accept* accept) {
  return wire::Get(in, &accept->id) && wire::Get(in, &accept->bytes) && wire::Get(in, &accept->region) &&
         wire::Get(in, &accept->by_slots) && accept->by_slots <= 1;
}

}  // namespace hvd::control
