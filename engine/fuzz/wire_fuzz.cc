// SPDX-License-Identifier: Apache-2.0
#include "fuzz/wire_fuzz.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "agreement/control.h"
#include "agreement/message.h"
#include "transport/frame.h"
#include "transport/handshake.h"

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
  uint64_t applied = 0;
  std::string first;
  body = input;
  control::DecodeAbort(&body, &rank, &first);
  body = input;
  control::DecodeGone(&body, &rank, &applied);
  body = input;
  control::StallNotice notice;
  Decode(&body, &notice);
  body = input;
  control::StackAnswer answer;
  Decode(&body, &answer);
  control::Offer offer;
  control::Accept accept;
  body = input;
  control::DecodeOffer(&body, &offer);
  body = input;
  control::DecodeAccept(&body, &accept);
  control::Part part;
  body = input;
  control::DecodeExpress(&body, &part);
  control::Place place;
  control::DecodePlace(&body, &place);
  uint64_t up_to = 0;
  body = input;
  control::DecodeExpressGone(&body, &up_to);
  control::Passed passed;
  control::Other other;
  std::string_view bytes;
  body = input;
  control::DecodeExpressOthers(&body, &passed);
  while (!body.empty() && control::DecodeOther(&body, &other, &bytes)) {
  }
  std::vector<control::Finished> finished;
  body = input;
  control::DecodeBye(&body, &finished);
  RoundTrip<Block>(input);
  RoundTrip<Deadlock>(input);
}

// The two ends of a stream.
struct Pair {
  int ends[2] = {-1, -1};
  Pair() {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends)) std::abort();
  }
  ~Pair() {
    for (int end : ends) close(end);
  }
  // Write `bytes` and end the stream. Bytes that do not fit into the socket's buffer are dropped, so that the reader
  // sees a stream that ends early.
  void Say(std::string_view bytes) {
    (void)!send(ends[0], bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(ends[0], SHUT_WR);
  }
};

constexpr uint64_t kKey[2] = {1, 2};

void ParseFrames(std::string_view input) {
  Pair pair;
  pair.Say(input);
  FrameReader reader(kKey);
  reader.Fill(pair.ends[1]);
  std::string_view message;
  while (reader.Next(&message) == FrameReader::Result::kMessage) continue;
}

// Write valid frames and possibly change one byte. The reader must return what was written, up to the change.
void TamperWithFrames(std::string_view input) {
  FrameWriter writer(kKey);
  std::vector<std::string_view> payloads;
  for (size_t size = 0; !input.empty(); input.remove_prefix(size)) {
    size = std::min<size_t>(1 + static_cast<uint8_t>(input[0]) % 100, input.size());
    payloads.push_back(input.substr(0, size));
    writer.Append(payloads.back());
  }
  Pair first, second;
  if (writer.Flush(first.ends[0]) != FrameIo::kDone) return;
  std::string bytes(1 << 16, 0);
  const ssize_t size = recv(first.ends[1], bytes.data(), bytes.size(), 0);
  if (size <= 0) return;
  bytes.resize(static_cast<size_t>(size));
  const size_t at = payloads[0].size() * 131 % (bytes.size() + 1);
  if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
  second.Say(bytes);
  FrameReader reader(kKey);
  reader.Fill(second.ends[1]);
  std::string_view message;
  size_t read = 0;
  for (; reader.Next(&message) == FrameReader::Result::kMessage; ++read) {
    if (read >= payloads.size() || message != payloads[read]) std::abort();
  }
  if ((read == payloads.size()) != (at == bytes.size())) std::abort();
}

// Check that no input opens a stream: neither end becomes ready without the secret.
void Knock(std::string_view input) {
  ConnectorIdentity me;
  me.world_id = "world";
  me.secret = "secret";
  StreamKey key;
  for (bool dials : {false, true}) {
    Pair pair;
    pair.Say(input);
    Handshake handshake = dials ? Handshake::Dial(pair.ends[1], me, key) : Handshake::Accept(pair.ends[1], me);
    while (handshake.outcome() == Handshake::Outcome::kInProgress && handshake.Step()) continue;
    if (handshake.outcome() == Handshake::Outcome::kReady) std::abort();
  }
}

}  // namespace

void ParseEverything(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  RoundTrip<Request>(input);
  RoundTrip<Record>(input);
  ParseControl(input);
  // Socket pairs are a hundred times slower than the rest, so use them for some inputs only, chosen by the contents of
  // the input.
  uint32_t sum = 0;
  for (size_t i = 0; i < size; ++i) sum = sum * 31 + data[i];
  if (size == 0 || sum % 128) return;
  ParseFrames(input);
  TamperWithFrames(input);
  Knock(input);
}

}  // namespace hvd::fuzz
