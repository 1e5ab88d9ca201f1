// SPDX-License-Identifier: Apache-2.0
// Encodings of control messages between engines: reports to a set's leader, records from it, and messages about the
// end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agreement/deadlocks.h"
#include "agreement/message.h"

namespace hvd {

namespace control {

enum class Type : uint8_t {
  kReady = 1,
  kRequest = 2,
  kRecord = 3,
  kGone = 4,
  kBye = 5,
  kAbort = 6,
  kOffer = 7,
  kAccept = 8,
  kPing = 9,
  kStall = 10,
  kStack = 11,
  kExpress = 12,
  kExpressPlace = 13,
  kExpressGone = 14,
  kBlock = 15,     // reports a waiting thread to the leader of the set in which it waits
  kWait = 16,      // passes on a kBlock with the missing ranks, or the end of the wait, to the leader of the global set
  kDeadlock = 17,  // sent by the leader of the global set to all ranks when it has found a deadlock
  kTurn = 18,      // a set's leader asks the leader of the global set for a launch slot
  kExpressOthers = 19,
};

constexpr size_t kHeaderBytes = sizeof(uint8_t) + sizeof(int32_t) + sizeof(uint32_t);

// Identity of a process set. Ids are reused, epochs are not.
struct SetTag {
  int32_t id = 0;
  uint32_t epoch = 0;
};

struct Header {
  Type type = Type::kReady;
  int32_t set = 0;
  uint32_t epoch = 0;
};

struct Report {
  uint32_t member = 0;
  uint64_t seen = 0;
  std::vector<uint32_t> slots;
  bool has_request = false;
  Request request;
};

// Header of one member's part of a collective on the fast path. The part's bytes follow it.
struct Part {
  uint32_t slot = 0;
  uint32_t round = 0;
  uint64_t seen = 0;  // number of the last record that the sender had applied
};

// Header of the message with which a forwarding rank sends on other members' parts (see relays.h). For each part, an
// Other and the part's bytes follow.
struct Passed {
  uint32_t slot = 0;
  uint32_t round = 0;
};
struct Other {
  uint32_t member = 0;
  uint32_t bytes = 0;
  uint64_t seen = 0;
};

// Location of a part in the sender's arena, for messages that do not contain the part's bytes.
struct Place {
  static constexpr size_t kUnit = 64;

  uint64_t number = 0;      // number of the part, counted among the sender's parts in shared memory
  uint64_t gone_up_to = 0;  // the sender no longer needs the receiver's parts up to this number
  uint32_t unit = 0;        // offset in units of kUnit bytes
} __attribute__((packed));

// A round that the sender, the leader of the set, has finished.
struct Finished {
  int32_t set = 0;
  uint32_t epoch = 0;
  uint32_t slot = 0;
  uint32_t round = 0;
};

// The next structs are the messages of point-to-point transfers. `region` is the offset of the pair's lane in the arena
// of the message's sender, or -1.
struct Offer {
  uint64_t id = 0;
  int64_t tag = 0;
  uint64_t bytes = 0;
  int64_t region = -1;
  std::string card;  // handle of the sender's slots on its GPU (see MessageSlots); empty: the bytes go over the lane
};
struct Accept {
  uint64_t id = 0;
  uint64_t bytes = 0;  // size of the receiver's buffer
  int64_t region = -1;
  uint8_t by_slots = 0;  // 1: the bytes go through the slots that the sender has offered
};

// A stall warning from the leader to all members.
struct StallNotice {
  std::string name;  // the tensor that waits
  std::string text;
  std::vector<int32_t> asked;  // ranks that should report what they are doing
};
void Encode(const StallNotice& notice, std::string* out);
bool Decode(std::string_view* in, StallNotice* notice);

// What a missing rank is doing, to the leader that asked for it.
struct StackAnswer {
  std::string name;  // the tensor that waits for this rank
  std::string text;
};
void Encode(const StackAnswer& answer, std::string* out);
bool Decode(std::string_view* in, StackAnswer* answer);

// Return a message that so far contains only its header.
std::string EncodeHeader(Type type, SetTag set = {});
// Return a message whose body has an Encode function.
template <typename Body>
std::string EncodeMessage(SetTag set, Type type, const Body& body) {
  std::string out = EncodeHeader(type, set);
  Encode(body, &out);
  return out;
}

void AddSlot(std::string* slots, uint32_t slot);
std::string EncodeReady(SetTag set, int member, uint64_t seen, std::string_view slots);
std::string EncodeRequest(SetTag set, int member, const Request& request);
// `applied` is the last record of the set that the rank had applied, or kNotTold if the sender only knows that the rank
// has left.
constexpr uint64_t kNotTold = UINT64_MAX;
std::string EncodeGone(SetTag set, int rank, uint64_t applied = kNotTold);
std::string EncodeBye(const std::vector<Finished>& finished);
// Reserves memory for `room` bytes that the caller appends.
std::string EncodeExpress(SetTag set, const Part& part, size_t room);
std::string EncodeExpress(SetTag set, const Part& part, const Place& place);
std::string EncodeExpressGone(SetTag set, uint64_t up_to);  // for `up_to` see Place::gone_up_to
std::string EncodeExpressOthers(SetTag set, const Passed& passed);
void AddOther(std::string* message, const Other& other, const std::byte* bytes);
std::string EncodeAbort(int lost_rank, std::string_view why);
std::string EncodePing();
std::string EncodeOffer(const Offer& offer);
std::string EncodeAccept(const Accept& accept);

bool Decode(std::string_view* in, Header* header);
Type TypeOf(std::string_view message);
bool DecodeReport(Type type, std::string_view* in, Report* report);
bool DecodeGone(std::string_view* in, int32_t* rank, uint64_t* applied);
bool DecodeBye(std::string_view* in, std::vector<Finished>* finished);
bool DecodeExpress(std::string_view* in, Part* part);
bool DecodePlace(std::string_view* in, Place* place);
bool DecodeExpressGone(std::string_view* in, uint64_t* up_to);
bool DecodeExpressOthers(std::string_view* in, Passed* passed);
// decodes the next part of a Passed message
bool DecodeOther(std::string_view* in, Other* other, std::string_view* bytes);
bool DecodeAbort(std::string_view* in, int32_t* lost_rank, std::string* why);
bool DecodeOffer(std::string_view* in, Offer* offer);
bool DecodeAccept(std::string_view* in, Accept* accept);

}  // namespace control
}  // namespace hvd
