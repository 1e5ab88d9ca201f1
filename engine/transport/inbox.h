// SPDX-License-Identifier: Apache-2.0
// Queue of messages to one rank, in its arena. Many local ranks write, one reads, and no locks are used. A message is
// cut into cells of one cache line. Cells of one writer stay in order, so the reader joins the cells of each writer.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hvd {

struct alignas(64) InboxCell {
  static constexpr size_t kPayload = 48;
  std::atomic<uint64_t> turn;  // sequence number: the index when free for writing, index + 1 when full
  uint32_t writer;
  uint16_t length;
  uint16_t more;  // nonzero if another cell of this message follows
  char payload[kPayload];
};
static_assert(sizeof(InboxCell) == 64);

struct Inbox {
  static constexpr uint64_t kCells = 1024;

  alignas(64) std::atomic<uint64_t> tail;  // next cell to write
  alignas(64) std::atomic<uint64_t> head;  // next cell to read; only the reader writes it
  InboxCell cells[kCells];

  void Initialise() {
    tail.store(0, std::memory_order_relaxed);
    head.store(0, std::memory_order_relaxed);
    for (uint64_t i = 0; i < kCells; ++i) cells[i].turn.store(i, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }

  // Write one cell and store its index in `written`. Return false when the queue is full; the writer then keeps the
  // cell and tries again later.
  bool TryWrite(uint32_t writer, std::string_view part, bool more, uint64_t* written) {
    uint64_t index = tail.load(std::memory_order_relaxed);
    for (;;) {
      InboxCell& cell = cells[index % kCells];
      uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == index) {
        if (!tail.compare_exchange_weak(index, index + 1, std::memory_order_relaxed)) continue;
        cell.writer = writer;
        cell.length = static_cast<uint16_t>(part.size());
        cell.more = more;
        std::memcpy(cell.payload, part.data(), part.size());
        cell.turn.store(index + 1, std::memory_order_release);
        *written = index;
        return true;
      }
      if (turn < index) return false;
      index = tail.load(std::memory_order_relaxed);
    }
  }

  // Return the next full cell, or nullptr. Call Advance after its contents have been used.
  InboxCell* Peek() {
    const uint64_t index = head.load(std::memory_order_relaxed);
    InboxCell& cell = cells[index % kCells];
    return cell.turn.load(std::memory_order_acquire) == index + 1 ? &cell : nullptr;
  }
  void Advance() {
    const uint64_t index = head.load(std::memory_order_relaxed);
    cells[index % kCells].turn.store(index + kCells, std::memory_order_release);
    head.store(index + 1, std::memory_order_relaxed);
  }
};

}  // namespace hvd
