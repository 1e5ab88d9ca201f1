// SPDX-License-Identifier: Apache-2.0
// What ranks exchange before a point-to-point message: offers and answers.
#include <doctest/doctest.h>

#include <string>

#include "agreement/control.h"
#include "devices/message_slots.h"

namespace hvd {
namespace {

template <typename Message, typename Decode>
void CheckTruncations(const std::string& whole, Decode decode) {
  for (size_t length = control::kHeaderBytes; length < whole.size(); ++length) {
    std::string_view body = std::string_view(whole).substr(control::kHeaderBytes, length - control::kHeaderBytes);
    Message message;
    CHECK_FALSE(decode(&body, &message));
  }
}

TEST_CASE("offers and answers survive the wire, and every truncation is refused") {
  const std::string offered = control::EncodeOffer({7, -3, 1 << 20, 4096, "a card"});
  std::string_view body = std::string_view(offered).substr(control::kHeaderBytes);
  control::Offer heard;
  REQUIRE(control::DecodeOffer(&body, &heard));
  CHECK(body.empty());
  CHECK(heard.id == 7);
  CHECK(heard.tag == -3);
  CHECK(heard.bytes == 1 << 20);
  CHECK(heard.region == 4096);
  CHECK(heard.card == "a card");
  CheckTruncations<control::Offer>(offered, control::DecodeOffer);

  const std::string accepted = control::EncodeAccept({7, 1 << 20, -1, 1});
  body = std::string_view(accepted).substr(control::kHeaderBytes);
  control::Accept answer;
  REQUIRE(control::DecodeAccept(&body, &answer));
  CHECK(answer.id == 7);
  CHECK(answer.by_slots == 1);
  CheckTruncations<control::Accept>(accepted, control::DecodeAccept);
}

TEST_CASE("an answer that names no way that there is, and a card of another size, are refused") {
  std::string accepted = control::EncodeAccept({7, 5, -1, 1});
  accepted.back() = 2;
  std::string_view body = std::string_view(accepted).substr(control::kHeaderBytes);
  control::Accept answer;
  CHECK_FALSE(control::DecodeAccept(&body, &answer));
  MessageSlots::Card card{{}, 4096, 4}, heard{};
  const std::string whole = card.Encode();
  REQUIRE(MessageSlots::Card::Decode(whole, &heard));
  CHECK(heard.slot_bytes == 4096);
  CHECK(heard.slots == 4);
  CHECK_FALSE(MessageSlots::Card::Decode(whole + "x", &heard));
  CHECK_FALSE(MessageSlots::Card::Decode("", &heard));
  card.slots = 0;
  CHECK_FALSE(MessageSlots::Card::Decode(card.Encode(), &heard));
}

}  // namespace
}  // namespace hvd
