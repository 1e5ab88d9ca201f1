// SPDX-License-Identifier: Apache-2.0
// Several connectors in one process for tests, driven as the engine drives them: edge-triggered epoll, asleep in
// between. The destructor of Connectors checks that no descriptor is left open.
#pragma once

#include <dirent.h>
#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/connector.h"
#include "transport/frame.h"
#include "transport/socket.h"

namespace hvd::connector_testing {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline ConnectorIdentity Rank(int rank) { return {rank, "world", 7, "a secret of the job"}; }

inline int OpenDescriptors() {
  DIR* dir = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(dir)) ++count;
  closedir(dir);
  return count;
}

// One rank: its connector, and the descriptors that the connector watches.
struct Node {
  std::set<int> watched;
  std::unique_ptr<Connector> connector;
};

// Several ranks driven by one thread, which sleeps while none of them can make progress.
struct Connectors {
  const int descriptors_before = OpenDescriptors();
  Fd epoll{epoll_create1(EPOLL_CLOEXEC)};
  std::vector<std::unique_ptr<Node>> nodes;
  std::set<int> taken;

  ~Connectors() {
    for (int fd : taken) close(fd);
    nodes.clear();
    epoll.Reset();
    CHECK(OpenDescriptors() == descriptors_before);
  }

  Node* Add(const ConnectorIdentity& me, const std::string& address = "127.0.0.1") {
    nodes.push_back(std::make_unique<Node>());
    Node* node = nodes.back().get();
    Connector::Watcher watcher;
    watcher.add = [this, node](int fd) {
      CHECK(node->watched.insert(fd).second);
      epoll_event event = {};
      event.events = EPOLLIN | EPOLLOUT | EPOLLET;
      CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
    };
    watcher.remove = [this, node](int fd) {
      CHECK(node->watched.erase(fd) == 1);
      CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr) == 0);
    };
    Status status;
    node->connector = Connector::Listen(me, address, watcher, &status);
    INFO(status.text);
    REQUIRE(node->connector);
    return node;
  }

  void SetPeers(const std::string& address = "127.0.0.1") {
    std::vector<std::pair<std::string, int>> peers;
    for (auto& node : nodes) peers.emplace_back(address, node->connector->port());
    for (auto& node : nodes) node->connector->SetPeers(peers);
  }

  // Drive the ranks until `done()`. Return false on timeout. `sleepy` suits tests in which only the nodes themselves
  // act.
  bool DriveUntil(const std::function<bool()>& done, milliseconds limit = milliseconds(30000), bool sleepy = true) {
    const Clock::time_point end = Clock::now() + limit;
    while (!done()) {
      bool moved = false;
      milliseconds sleep = std::chrono::ceil<milliseconds>(end - Clock::now());
      if (sleep.count() <= 0) return false;
      for (auto& node : nodes) moved |= node->connector->Progress();
      for (auto& node : nodes) sleep = std::min(sleep, node->connector->NextWakeup());
      epoll_event events[64];
      if (!moved && sleepy) epoll_wait(epoll.get(), events, 64, static_cast<int>(sleep.count()));
    }
    return true;
  }

  bool UntilAwake(const std::function<bool()>& done) { return DriveUntil(done, milliseconds(30000), false); }

  Stream Take(Node* node, const StreamKey& key) {
    Stream stream;
    Status status;
    DriveUntil([&] { return (stream = node->connector->Take(key, &status)).fd >= 0 || !status.ok(); });
    INFO(status.text);
    REQUIRE(stream.fd >= 0);
    taken.insert(stream.fd);
    return stream;
  }

  Status Failure(Node* node, const StreamKey& key) {
    Status status;
    DriveUntil([&] { return node->connector->Take(key, &status).fd >= 0 || !status.ok(); });
    return status;
  }
};

// Port of a host that never answers: its kernel drops connections because the listener's queue is full.
class UnreachablePort {
 public:
  UnreachablePort() : listener_(NewTcpSocket(AF_INET)) {
    SocketAddress address;
    REQUIRE(ParseAddress("127.0.0.1", 0, &address));
    REQUIRE(bind(listener_.get(), address.get(), address.size) == 0);
    REQUIRE(listen(listener_.get(), 0) == 0);
    REQUIRE(ParseAddress("127.0.0.1", port(), &address));
    for (Fd& fd : fillers_) {
      fd = NewTcpSocket(AF_INET);
      REQUIRE((connect(fd.get(), address.get(), address.size) == 0 || errno == EINPROGRESS));
    }
  }
  int port() const { return LocalPort(listener_.get()); }

 private:
  Fd listener_;
  Fd fillers_[2];  // the first one fills the queue
};

// Return the socket of a client that does not know the secret.
inline Fd Stranger(int port) {
  SocketAddress address;
  REQUIRE(ParseAddress("127.0.0.1", port, &address));
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(fd.get(), address.get(), address.size) == 0);
  return fd;
}

inline void CheckTalk(const Stream& from, const Stream& to, const std::string& text) {
  FrameWriter writer(from.send_key);
  FrameReader reader(to.recv_key);
  REQUIRE(writer.Append(text));
  REQUIRE(writer.Flush(from.fd) == FrameIo::kDone);
  REQUIRE(reader.Fill(to.fd) == FrameIo::kDone);  // over loopback, sent data has arrived
  std::string_view payload;
  REQUIRE(reader.Next(&payload) == FrameReader::Result::kMessage);
  CHECK(payload == text);
}

inline void CheckLink(Connectors* world, Node* low, int low_rank, Node* high, int high_rank) {
  const Stream up = world->Take(high, {low_rank, 0, 0, 0, 0}), down = world->Take(low, {high_rank, 0, 0, 0, 0});
  CheckTalk(up, down, "up");
  CheckTalk(down, up, "down");
}

}  // namespace hvd::connector_testing
