// SPDX-License-Identifier: Apache-2.0
// Control frames over a real socket pair: frames that are truncated, changed, replayed or too long never become
// messages.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "transport/frame.h"
#include "transport/socket.h"

namespace hvd {
namespace {

using Result = FrameReader::Result;
const uint64_t kKey[2] = {0x1111222233334444u, 0x5555666677778888u};

struct Pair {
  Fd near, far;
  Pair() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    near.Reset(fds[0]);
    far.Reset(fds[1]);
  }
  void Send(const std::string& bytes) {
    REQUIRE(SendSome(near.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
};

// Return the bytes that a writer sends for these messages.
std::string Wire(const std::vector<std::string>& messages, size_t open = 0) {
  Pair pair;
  FrameWriter writer(kKey);
  for (std::string_view message : messages) {
    const size_t covered = message.size() - open;
    REQUIRE(writer.Append(message.substr(0, covered), message.substr(covered)));
  }
  REQUIRE(writer.Flush(pair.near.get()) == FrameIo::kDone);
  std::string bytes(1 << 16, '\0');
  ssize_t n = ReceiveSome(pair.far.get(), bytes.data(), bytes.size());
  REQUIRE(n > 0);
  bytes.resize(static_cast<size_t>(n));
  return bytes;
}

// Send `bytes` and the end of the stream to a new reader. Append the messages and return the final result.
Result Feed(const std::string& bytes, std::vector<std::string>* messages) {
  Pair pair;
  pair.Send(bytes);
  pair.near.Reset();
  FrameReader reader(kKey);
  FrameIo io;
  while ((io = reader.Fill(pair.far.get())) == FrameIo::kAgain) continue;
  CHECK(io == FrameIo::kClosed);
  std::string_view payload;
  Result result;
  while ((result = reader.Next(&payload)) == Result::kMessage) messages->emplace_back(payload);
  CHECK(reader.Next(&payload) == result);  // kNothing and kCorrupt are both final
  return result;
}

TEST_CASE("messages of all sizes arrive whole and in order") {
  Pair pair;
  FrameWriter writer(kKey);
  FrameReader reader(kKey);
  std::vector<std::string> sent;
  for (size_t size : {0u, 1u, 7u, 8u, 100u, 16384u, 16368u, 70000u, 3000000u, 5u}) {
    sent.push_back(std::string(size, static_cast<char>('a' + sent.size())));
  }
  for (const std::string& message : sent) REQUIRE(writer.Append(message));
  size_t arrived = 0;
  for (int turn = 0; turn < 100000 && arrived < sent.size(); ++turn) {
    REQUIRE(writer.Flush(pair.near.get()) != FrameIo::kFailed);
    const FrameIo io = reader.Fill(pair.far.get());
    const bool readable = io == FrameIo::kDone || io == FrameIo::kAgain;
    REQUIRE(readable);
    std::string_view payload;
    while (reader.Next(&payload) == Result::kMessage) {
      REQUIRE(payload == sent[arrived]);
      ++arrived;
    }
  }
  CHECK(arrived == sent.size());
  CHECK(writer.pending() == 0);
  CHECK(reader.buffered() == 0);
  CHECK(reader.capacity() <= 1u << 20);  // the memory of the large message was released
}

TEST_CASE("many small messages leave in one piece and are read with one buffer") {
  std::vector<std::string> sent(200, "ready"), got;
  const std::string bytes = Wire(sent);
  CHECK(bytes.size() == 200 * (kFrameHeaderSize + 5));
  CHECK(Feed(bytes, &got) == Result::kNothing);
  CHECK(got == sent);
}

TEST_CASE("a full socket is reported, and nothing is lost by it") {
  Pair pair;
  FrameWriter writer(kKey);
  const std::string message(1 << 20, 'x');
  REQUIRE(writer.Append(message));
  REQUIRE(writer.Flush(pair.near.get()) == FrameIo::kAgain);
  CHECK(writer.pending() > 0);
  REQUIRE(writer.Append("after"));
  FrameReader reader(kKey);
  std::vector<std::string> got;
  std::string_view payload;
  for (int turn = 0; turn < 10000 && got.size() < 2; ++turn) {
    writer.Flush(pair.near.get());
    reader.Fill(pair.far.get());
    while (reader.Next(&payload) == Result::kMessage) got.emplace_back(payload);
  }
  CHECK(got == std::vector<std::string>{message, "after"});
}

TEST_CASE("a stream cut at any byte gives only the messages before the cut") {
  const std::vector<std::string> sent = {"first", "", "third message"};
  const std::string bytes = Wire(sent);
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    std::vector<std::string> got;
    REQUIRE(Feed(bytes.substr(0, cut), &got) == Result::kNothing);
    size_t whole = 0, end = kFrameHeaderSize + sent[0].size();
    while (end <= cut) end += kFrameHeaderSize + sent[++whole].size();
    REQUIRE(got.size() == whole);
  }
}

TEST_CASE("a flipped bit anywhere never gives a wrong message") {
  const std::vector<std::string> sent = {"first", "second message"};
  const std::string bytes = Wire(sent);
  const size_t second = kFrameHeaderSize + sent[0].size();
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    std::vector<std::string> got;
    const Result result = Feed(changed, &got);
    REQUIRE(got.size() == (bit / 8 < second ? 0 : 1));
    const size_t in_frame = bit / 8 % second;
    // A larger length within the limit makes the reader wait for bytes that never come. Every other change is noticed.
    if (in_frame >= 4) REQUIRE(result == Result::kCorrupt);
  }
}

TEST_CASE("a message that is sent from where it lies arrives whole, and what the socket does not take follows") {
  Pair pair;
  FrameWriter writer(kKey);
  FrameReader reader(kKey);
  const std::string tensor(3 << 20, 't');  // more than fits into the socket
  CHECK(writer.Send(pair.near.get(), "small", "one"));
  CHECK(writer.pending() == 0);
  CHECK(writer.Send(pair.near.get(), "large", tensor));
  CHECK(writer.pending() > 0);
  CHECK(writer.Send(pair.near.get(), "", "behind it"));
  std::vector<std::string> messages;
  while (messages.size() < 3) {
    REQUIRE(writer.Flush(pair.near.get()) != FrameIo::kFailed);
    REQUIRE(reader.Fill(pair.far.get()) != FrameIo::kFailed);
    std::string_view payload;
    while (reader.Next(&payload) == Result::kMessage) messages.emplace_back(payload);
  }
  CHECK(messages[0] == "smallone");
  CHECK(messages[1] == "large" + tensor);
  CHECK(messages[2] == "behind it");
  CHECK_FALSE(writer.Send(pair.near.get(), "x", std::string(kMaxFramePayload, 'y')));
}

TEST_CASE("open bytes are not authenticated; what comes before them, and how many they are, is") {
  const std::string bytes = Wire({"headtensor"}, 6);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] ^= 1;
    std::vector<std::string> got;
    const Result result = Feed(changed, &got);
    if (at < kFrameHeaderSize + 4) {
      REQUIRE(got.empty());
      if (at >= 4) REQUIRE(result == Result::kCorrupt);
    } else {
      REQUIRE(got == std::vector<std::string>{changed.substr(kFrameHeaderSize)});
    }
  }
}

TEST_CASE("a length that grew is noticed when the missing bytes come") {
  std::string bytes = Wire({"first", "second message", std::string(300, 'z')});
  bytes[0] = static_cast<char>(bytes[0] ^ 0x40);
  std::vector<std::string> got;
  CHECK(Feed(bytes, &got) == Result::kCorrupt);
  CHECK(got.empty());
}

TEST_CASE("replayed, reordered and left out frames are refused") {
  const std::string both = Wire({"same", "same"});
  const std::string first = both.substr(0, both.size() / 2), second = both.substr(both.size() / 2);
  std::vector<std::string> got;
  CHECK(Feed(first + first, &got) == Result::kCorrupt);
  CHECK(got.size() == 1);
  got.clear();
  CHECK(Feed(second + first, &got) == Result::kCorrupt);
  CHECK(got.empty());
  CHECK(Feed(second, &got) == Result::kCorrupt);

  std::string renumbered = first + first;
  std::memcpy(&renumbered[first.size() + 8], &second[8], 8);  // the expected number, but with the tag of another frame
  CHECK(Feed(renumbered, &got) == Result::kCorrupt);
  CHECK(got.size() == 1);
}

TEST_CASE("a frame made with another key is refused") {
  Pair pair;
  const uint64_t other[2] = {kKey[0], kKey[1] ^ 1};
  FrameWriter writer(other);
  FrameReader reader(kKey);
  REQUIRE(writer.Append("hello"));
  REQUIRE(writer.Flush(pair.near.get()) == FrameIo::kDone);
  REQUIRE(reader.Fill(pair.far.get()) == FrameIo::kDone);
  std::string_view payload;
  CHECK(reader.Next(&payload) == Result::kCorrupt);
}

TEST_CASE("an absurd length is refused by its header, and a large one takes no memory before its bytes come") {
  std::string_view payload;
  for (uint32_t length : {0xffffffffu, uint32_t{kMaxFramePayload} + 1, uint32_t{kMaxFramePayload}}) {
    Pair pair;
    std::string header(kFrameHeaderSize, '\0');
    std::memcpy(header.data(), &length, sizeof length);
    pair.Send(header);
    FrameReader reader(kKey);
    REQUIRE(reader.Fill(pair.far.get()) == FrameIo::kDone);
    CHECK(reader.Next(&payload) == (length > kMaxFramePayload ? Result::kCorrupt : Result::kNothing));
    CHECK(reader.capacity() <= 64u << 10);
  }
  FrameWriter writer(kKey);
  CHECK_FALSE(writer.Append(std::string(kMaxFramePayload + 1, 'x')));
  CHECK(writer.pending() == 0);
}

TEST_CASE("the largest message passes, and a reader that is not emptied stops reading") {
  Pair pair;
  FrameWriter writer(kKey);
  FrameReader reader(kKey);
  REQUIRE(writer.Append(std::string(kMaxFramePayload, 'x')));
  REQUIRE(writer.Append(std::string(kMaxFramePayload, 'y')));
  size_t before = 1;
  for (int turn = 0; turn < 100000 && before != writer.pending(); ++turn) {
    before = writer.pending();
    writer.Flush(pair.near.get());
    reader.Fill(pair.far.get());
  }
  CHECK(writer.pending() > 0);
  CHECK(reader.buffered() <= 2 * (kMaxFramePayload + kFrameHeaderSize));
  std::string_view payload;
  REQUIRE(reader.Next(&payload) == Result::kMessage);
  CHECK(payload == std::string(kMaxFramePayload, 'x'));
}

TEST_CASE("a lost connection is told with its error") {
  Pair pair;
  FrameWriter writer(kKey);
  REQUIRE(writer.Append("hello"));
  pair.far.Reset();
  CHECK(writer.Flush(pair.near.get()) == FrameIo::kFailed);
  CHECK(writer.error() == EPIPE);
  FrameReader reader(kKey);
  CHECK(reader.Fill(-1) == FrameIo::kFailed);
  CHECK(reader.error() == EBADF);
}

}  // namespace
}  // namespace hvd
