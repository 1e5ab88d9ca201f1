// SPDX-License-Identifier: Apache-2.0
// Mutual authentication with the job's secret on a new stream socket (TCP or unix), as a state machine that never
// blocks.
//
//   dialer   -> acceptor   magic with version, nonce D
//   acceptor -> dialer     nonce A, MAC("acceptor", magic, D, A)
//   dialer   -> acceptor   HELLO, MAC("dialer", magic, D, A, HELLO)
//   acceptor -> dialer     verdict byte, MAC("ready", magic, D, A, HELLO) or MAC("refused", magic, D, A, verdict)
//
// Every message has a fixed size. HELLO is decoded only after its MAC is verified. Fresh nonces make a replayed
// dialogue useless, and the labels "acceptor" and "dialer" a reflected one. No byte after the handshake is read,
// because it belongs to the next user of the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/connector.h"
#include "transport/sha256.h"

namespace hvd {

class Handshake {
 public:
  enum class Outcome {
    kInProgress,
    kReady,     // both ends have proved that they know the secret, and they agree on the purpose of the stream
    kRefused,   // the peer knows the secret but belongs to another world, generation or rank: a retry is useless
    kUnproven,  // the peer sent invalid data or does not know the secret
    kBroken,    // the connection was closed or failed
  };
  static constexpr uint8_t kProtocolVersion = 1;
  static constexpr size_t kMagicSize = 8, kNonceSize = 32, kMacSize = 32, kHelloSize = 56;
  static constexpr size_t kGreetingSize = kMagicSize + kNonceSize;
  static constexpr size_t kChallengeSize = kNonceSize + kMacSize;
  static constexpr size_t kProofSize = kHelloSize + kMacSize;
  static constexpr size_t kVerdictSize = 1 + kMacSize;
  // Bytes that each end has sent once both are kReady.
  static constexpr size_t kDialerBytes = kGreetingSize + kProofSize;
  static constexpr size_t kAcceptorBytes = kChallengeSize + kVerdictSize;

  // `fd` is non-blocking and remains the caller's; `me` must outlive the handshake. A TCP `fd` may still be connecting.
  // Tests pass another `version` to act as an older or newer peer.
  static Handshake Dial(int fd, const ConnectorIdentity& me, const StreamKey& key, uint8_t version = kProtocolVersion);
  static Handshake Accept(int fd, const ConnectorIdentity& me, uint8_t version = kProtocolVersion);

  // Make all progress that is possible now; return true if there was any. Call again when `fd` becomes readable or
  // writable.
  bool Step();

  Outcome outcome() const { return outcome_; }
  // Return the key of the stream. The acceptor knows it after kReady; `peer` is the rank at the other end.
  const StreamKey& key() const { return key_; }
  Stream stream() const;  // returns the stream; valid after kReady
  // Return true if the peer closed the connection without sending a byte: it only probed whether this rank listens.
  bool left_at_once() const {
    return stage_ == Stage::kAwaitGreeting && received_ == 0 && outcome_ == Outcome::kBroken;
  }
  // Return the reason for which the outcome is not kReady, worded as the end of a sentence.
  const std::string& problem() const { return problem_; }

 private:
  enum class Stage { kAwaitGreeting, kAwaitChallenge, kAwaitProof, kAwaitVerdict, kLastWords, kDrain };
  enum Verdict : char { kWelcome = 0, kOtherVersion = 1, kOtherWorld = 2, kOtherGeneration = 3, kOtherRank = 4 };

  Handshake(int fd, const ConnectorIdentity& me, uint8_t version, Stage first);
  static size_t SizeOfMessage(Stage stage);
  bool Flush(bool* moved);
  bool Read(bool* moved);
  void OnMessage(std::string_view message);
  void OnGreeting(std::string_view message);
  void OnChallenge(std::string_view message);
  void OnProof(std::string_view message);
  void OnVerdict(std::string_view message);
  void Drain();
  Verdict Judge(std::string_view hello);
  void Refuse(Verdict verdict);
  void Finish(Outcome outcome, std::string problem);
  std::string OwnMagic() const;
  std::string Explain(char verdict) const;
  bool DrawNonce(std::string* nonce);
  std::string EncodeHello() const;
  Digest Mac(std::string_view label, std::string_view rest = {}) const;

  int fd_;
  const ConnectorIdentity* me_;
  uint8_t version_;
  bool dialer_ = false;
  Stage stage_;
  Outcome outcome_ = Outcome::kInProgress;
  StreamKey key_;
  std::string problem_;
  std::string magic_, dialer_nonce_, acceptor_nonce_, hello_;
  std::string out_;
  size_t sent_ = 0;
  std::array<char, kProofSize> in_ = {};
  size_t received_ = 0;
  size_t drained_ = 0;
};

}  // namespace hvd
