// SPDX-License-Identifier: Apache-2.0
#include "fuzz/wire_fuzz.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/control.h"
#include "core/message.h"
#include "transport/frame.h"

namespace hvd::fuzz {
namespace {

template <typename Message>
void RoundTrip(std::string_view input) {
  Message message;
  if (!Decode(&input, &message)) return;
  std::string once, twice;
  Encode(message, &once);
  std::string_view again = once;
  Message copy;
  if (!Decode(&again, &copy) || !again.empty()) std::abort();
  Encode(copy, &twice);
  if (once != twice) std::abort();
}

void ParseControl(std::string_view input) {
  control::Header header;
  if (!control::Decode(&input, &header)) return;
  control::Report report;
  std::string_view body = input;
  control::DecodeReport(header.type, &body, &report);
  int32_t rank = 0;
  std::string first, second;
  body = input;
  control::DecodeAbort(&body, &rank, &first);
  body = input;
  control::DecodeGone(&body, &rank);
  body = input;
  std::vector<int32_t> asked;
  control::DecodeStall(&body, &first, &second, &asked);
  body = input;
  control::DecodeStack(&body, &first, &second);
  control::Offer offer;
  control::Accept accept;
  body = input;
  control::DecodeOffer(&body, &offer);
  body = input;
  control::DecodeAccept(&body, &accept);
}

// The stream reader gets the input through a real socket, as it would from a peer that lost its mind.
void ParseFrames(std::string_view input) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends)) return;
  const uint64_t key[2] = {1, 2};
  FrameReader reader(key);
  const ssize_t sent = send(ends[0], input.data(), input.size(), MSG_NOSIGNAL);
  close(ends[0]);
  if (sent >= 0) {
    reader.Fill(ends[1]);
    std::string message;
    while (reader.Next(&message) == FrameReader::Result::kMessage) continue;
  }
  close(ends[1]);
}

}  // namespace

void ParseEverything(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  RoundTrip<Request>(input);
  RoundTrip<Record>(input);
  ParseControl(input);
  if (size && data[0] % 64 == 0) ParseFrames(input);  // a socket pair costs more than all the rest
}

}  // namespace hvd::fuzz
