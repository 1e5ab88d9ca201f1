// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other before a message: offers, answers, and the GPUs that it goes between.
#include "core/gpu_ends.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "agreement/control.h"

namespace hvd {
namespace {

NcclPassport PassportOf(const char* gpu, int32_t wish = kGpuAuto, int32_t version = 22809) {
  NcclPassport passport{};
  std::strncpy(passport.uuid.bytes, gpu, sizeof passport.uuid.bytes);
  passport.wish = wish;
  passport.version = version;
  return passport;
}

template <typename Message, typename Decode>
void CheckTruncations(const std::string& whole, Decode decode) {
  for (size_t length = control::kHeaderBytes; length < whole.size(); ++length) {
    std::string_view body = std::string_view(whole).substr(control::kHeaderBytes, length - control::kHeaderBytes);
    Message message;
    CHECK_FALSE(decode(&body, &message));
  }
}

TEST_CASE("offers and answers survive the wire, and every truncation is refused") {
  const control::Offer offer{7, -3, 1 << 20, 4096, "a GPU"};
  const std::string offered = control::EncodeOffer(offer);
  std::string_view body = std::string_view(offered).substr(control::kHeaderBytes);
  control::Offer heard;
  REQUIRE(control::DecodeOffer(&body, &heard));
  CHECK(body.empty());
  CHECK(heard.id == 7);
  CHECK(heard.tag == -3);
  CHECK(heard.bytes == 1 << 20);
  CHECK(heard.region == 4096);
  CHECK(heard.gpu == "a GPU");
  CheckTruncations<control::Offer>(offered, control::DecodeOffer);

  const control::Accept accept{7, 1 << 20, -1, control::Accept::kRefused, "why"};
  const std::string accepted = control::EncodeAccept(accept);
  body = std::string_view(accepted).substr(control::kHeaderBytes);
  control::Accept answer;
  REQUIRE(control::DecodeAccept(&body, &answer));
  CHECK(answer.way == control::Accept::kRefused);
  CHECK(answer.word == "why");
  CheckTruncations<control::Accept>(accepted, control::DecodeAccept);
}

TEST_CASE("a way that does not exist is refused") {
  std::string accepted = control::EncodeAccept({7, 5, -1, control::Accept::kByNccl, ""});
  accepted[accepted.size() - sizeof(uint32_t) - 1] = 3;
  std::string_view body = std::string_view(accepted).substr(control::kHeaderBytes);
  control::Accept answer;
  CHECK_FALSE(control::DecodeAccept(&body, &answer));
}

TEST_CASE("what is told of a GPU takes as many bytes as there is to tell") {
  NcclPassport passport = PassportOf("one"), heard;
  const std::string usual = GpuEnds::Encode(passport);
  CHECK(usual.size() < 150);
  REQUIRE(GpuEnds::Decode(usual, &heard));
  CHECK(std::memcmp(&heard, &passport, sizeof heard) == 0);
  std::strcpy(passport.why_not.data(), "it is not there");
  REQUIRE(GpuEnds::Decode(GpuEnds::Encode(passport), &heard));
  CHECK(std::string(heard.why_not.data()) == "it is not there");
  CHECK_FALSE(GpuEnds::Decode(usual.substr(1), &heard));
  CHECK_FALSE(GpuEnds::Decode(std::string(sizeof passport, 'x'), &heard));  // a text without an end
}

TEST_CASE("which way a message goes follows from both ends") {
  const NcclPassport one = PassportOf("one"), other = PassportOf("other");
  CHECK(GpuEnds::Against(one, 4, other, 2).empty());
  CHECK(GpuEnds::Against(one, 4, one, 2) == "ranks 4,2 share a GPU, which NCCL refuses");
  CHECK(GpuEnds::Against(one, 4, PassportOf("other", kGpuAuto, 21805), 2) ==
        "ranks have different versions of NCCL: rank 2 has 2.18.5, rank 4 has 2.28.9");
  CHECK(GpuEnds::Against(PassportOf("one", kGpuOwn), 4, other, 2) == "rank 4 asks for HOROVOD_GPU_TRANSPORT=own");
  CHECK_FALSE(GpuEnds::Insists(one, other));
  CHECK(GpuEnds::Insists(one, PassportOf("other", kGpuNccl)));
  CHECK(GpuEnds::Against(PassportOf("one", kGpuNccl), 4, one, 2).empty());  // NCCL knows best whether it can
}

}  // namespace
}  // namespace hvd
