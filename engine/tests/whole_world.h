// SPDX-License-Identifier: Apache-2.0
// Whole worlds inside one process: one thread for each rank, with thin calls over World.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/world.h"

namespace hvd::testing {

struct Layout {
  int ranks = 2;
  int hosts = 1;
  bool memory = true;
  size_t slot_bytes = 4096;
  std::function<void(Settings*)> adjust = nullptr;
  std::function<void(World*)> prepare = nullptr;  // called before the world connects
  std::vector<int> placed = {};                   // host of each rank; if empty, consecutive ranks share a host

  int HostOf(int rank) const { return placed.empty() ? rank * hosts / ranks : placed[static_cast<size_t>(rank)]; }
};

// One rank for its thread: thin calls over World that fail the test on an error.
class Rank {
 public:
  Rank(World* world, int rank, int size) : world_(world), rank_(rank), size_(size) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  World& world() { return *world_; }

  template <typename T>
  std::unique_ptr<hvd::Operation> Operation(OpKind kind, const std::string& name, DType dtype,
                                            std::vector<int64_t> shape, const T* in, T* out) {
    auto operation = std::make_unique<hvd::Operation>();
    operation->request.kind = kind;
    operation->request.name = name;
    operation->request.dtype = dtype;
    operation->request.shape = std::move(shape);
    operation->input = reinterpret_cast<const std::byte*>(in);
    operation->output = reinterpret_cast<std::byte*>(out);
    return operation;
  }

  int64_t Submit(std::unique_ptr<hvd::Operation> operation, bool will_wait = false) {
    std::vector<std::unique_ptr<hvd::Operation>> one;
    one.push_back(std::move(operation));
    Status status;
    const int64_t handle = world_->Submit(std::move(one), will_wait, nullptr, &status);
    submit_status = status;
    return handle;
  }

  Status Wait(int64_t handle) {
    Status status;
    Code code;
    while ((code = world_->Wait(handle, 1000, &status)) == Code::kInProgress) continue;
    return status;
  }

  Status Run(std::unique_ptr<hvd::Operation> operation) {
    const int64_t handle = Submit(std::move(operation), true);
    if (!handle) return submit_status;
    Status status = Wait(handle);
    last = world_->Find(handle);
    world_->Release(handle);
    return status;
  }

  Status submit_status;
  std::shared_ptr<Handle> last;

 private:
  World* world_;
  int rank_, size_;
};

inline void RunWorld(const Layout& layout, const std::function<void(Rank&)>& body) {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<Peer> peers;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    Identity identity;
    identity.rank = rank;
    identity.size = layout.ranks;
    identity.host = "host" + std::to_string(layout.HostOf(rank));
    identity.world_id = "test";
    identity.secret = "a secret of the test";
    Settings settings;
    settings.shared_memory = layout.memory;
    settings.slot_bytes = layout.slot_bytes;
    settings.small_bytes = 256;
    settings.spin_us = 0;
    if (layout.adjust) layout.adjust(&settings);
    Status status;
    worlds.push_back(World::Open(identity, settings, &status));
    REQUIRE_MESSAGE(status.ok(), status.text);
    if (layout.prepare) layout.prepare(worlds[rank].get());
    peers.push_back({rank, identity.host, "127.0.0.1", worlds[rank]->tcp_port(), worlds[rank]->local_socket()});
  }
  std::vector<std::string> problems(layout.ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Status status = worlds[rank]->Connect(peers, 20);
      if (!status.ok()) {
        problems[rank] = status.text;
        return;
      }
      Rank self(worlds[rank].get(), rank, layout.ranks);
      body(self);
      worlds[rank]->Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) CHECK_MESSAGE(problem.empty(), problem);
}

}  // namespace hvd::testing
