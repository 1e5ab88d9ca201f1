// SPDX-License-Identifier: Apache-2.0
#include "transport/mailbox.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace hvd {
namespace {

constexpr size_t kFewLinks = 4;
constexpr size_t kWorthNoCopy = 2048;  // for less data, a gathering system call takes longer than the copy

}  // namespace

Mailbox::Mailbox(int rank, Inbox* own, Neighbours* neighbours, Connector* connector)
    : rank_(rank), own_(own), connector_(connector) {
  for (Neighbour& neighbour : neighbours->all()) {
    if (neighbour.arena) outboxes_[neighbour.rank].neighbour = &neighbour;
  }
}

Mailbox::~Mailbox() { CloseDescriptors(); }

void Mailbox::CloseDescriptors() {
  for (auto& [rank, link] : links_) {
    if (link.fd >= 0) close(link.fd);
    link.fd = -1;
    link.broken = true;
  }
}

void Mailbox::Expect(int rank, bool vital) {
  if (rank == rank_ || outboxes_.count(rank)) return;
  Link& link = LinkTo(rank);
  if (vital && !link.vital) link.heard = std::chrono::steady_clock::now();
  link.vital |= vital;
}

Mailbox::Link& Mailbox::LinkTo(int rank) {
  has_links_.store(true, std::memory_order_relaxed);
  return links_[rank];
}

std::vector<int> Mailbox::LinkedRanks() const {
  std::vector<int> ranks;
  for (const auto& [rank, outbox] : outboxes_) ranks.push_back(rank);
  for (const auto& [rank, link] : links_) ranks.push_back(rank);
  return ranks;
}

std::vector<Mailbox::Sign> Mailbox::SignsOfLife() const {
  const auto now = std::chrono::steady_clock::now();
  std::vector<Sign> signs;
  for (const auto& [rank, link] : links_) {
    if (!link.broken && (link.fd >= 0 || link.vital)) signs.push_back({rank, link.fd >= 0, now - link.heard});
  }
  return signs;
}

void Mailbox::Send(int rank, std::string_view message, std::string_view open, size_t data) {
  sent_.store(sent() + 1, std::memory_order_relaxed);  // a load and a store suffice, because only one thread writes
  auto outbox = outboxes_.find(rank);
  if (outbox != outboxes_.end()) {
    return open.empty() ? SendByInbox(outbox->second, message)
                        : SendByInbox(outbox->second, std::string(message).append(open));
  }
  Link& link = LinkTo(rank);
  if (link.broken || !link.refused.empty()) return;
  if (!Establish(rank, link)) {
    link.waiting.push_back({std::string(message), std::string(open), data});
    return;
  }
  open.size() < kWorthNoCopy ? link.writer->Append(message, open, data) : link.writer->Send(link.fd, message, open);
  Write(link);
}

// Send what the writer holds. If that fails, do not break the link yet: the abort reason of the peer may still be
// unread.
void Mailbox::Write(Link& link) {
  if (link.writer->Flush(link.fd) != FrameIo::kFailed) return;
  link.refused = std::strerror(link.writer->error());
  link.readable = unread_ = true;
}

void Mailbox::SendByInbox(Outbox& outbox, std::string_view message) {
  Inbox& inbox = outbox.neighbour->head()->inbox;
  bool direct = outbox.waiting.empty();
  do {
    const std::string_view bytes = message.substr(0, InboxCell::kPayload);
    message.remove_prefix(bytes.size());
    direct = direct && inbox.TryWrite(static_cast<uint32_t>(rank_), bytes, !message.empty(), &outbox.last_cell);
    if (!direct) {
      outbox.waiting.push_back({std::string(bytes), !message.empty()});
      ++waiting_cells_;
    }
  } while (!message.empty());
  outbox.unrung = unrung_ = true;
}

void Mailbox::RingUnread() {
  if (!unrung_) return;
  unrung_ = false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (auto& [rank, outbox] : outboxes_) {
    if (!outbox.unrung) continue;
    outbox.unrung = false;
    const Inbox& inbox = outbox.neighbour->head()->inbox;
    if (inbox.head.load(std::memory_order_relaxed) <= outbox.last_cell) outbox.neighbour->bell.Ring();
  }
}

bool Mailbox::FlushOutbox(Outbox& outbox) {
  bool moved = false;
  while (!outbox.waiting.empty()) {
    const Cell& cell = outbox.waiting.front();
    Inbox& inbox = outbox.neighbour->head()->inbox;
    if (!inbox.TryWrite(static_cast<uint32_t>(rank_), cell.bytes, cell.more, &outbox.last_cell)) break;
    outbox.waiting.pop_front();
    --waiting_cells_;
    moved = true;
  }
  if (moved) outbox.unrung = unrung_ = true;
  return moved;
}

bool Mailbox::Establish(int rank, Link& link) {
  if (link.fd >= 0) return true;
  if (link.broken) return false;
  StreamKey key;
  key.peer = rank;
  Status status;
  const Stream stream = connector_->Take(key, &status);
  if (!status.ok()) Break(rank, link, status.text);
  if (stream.fd < 0) return false;
  link.fd = stream.fd;
  link.heard = std::chrono::steady_clock::now();
  link.writer = std::make_unique<FrameWriter>(stream.send_key, &connector_->traffic);
  link.reader = std::make_unique<FrameReader>(stream.recv_key);
  for (const Unsent& unsent : link.waiting) link.writer->Append(unsent.message, unsent.open, unsent.data);
  link.waiting.clear();
  return true;
}

bool Mailbox::Flush() {
  bool moved = false;
  if (waiting_cells_) {
    for (auto& [rank, outbox] : outboxes_) moved |= FlushOutbox(outbox);
  }
  for (auto& [rank, link] : links_) {
    if (link.broken || (link.fd < 0 && !Establish(rank, link))) continue;
    if (link.writer->pending() == 0 || !link.refused.empty()) continue;
    const size_t before = link.writer->pending();
    Write(link);
    moved |= link.writer->pending() != before;
  }
  return moved;
}

bool Mailbox::AllSent() const {
  if (waiting_cells_) return false;
  return std::all_of(links_.begin(), links_.end(), [](const auto& item) {
    const Link& link = item.second;
    if (link.broken || !link.refused.empty()) return true;
    return link.waiting.empty() && (!link.writer || link.writer->pending() == 0);
  });
}

void Mailbox::OnEvent(int fd) {
  for (auto& [rank, link] : links_) {
    if (link.fd == fd) link.readable = unread_ = true;
  }
}

void Mailbox::LookEverywhere() {
  for (auto& [rank, link] : links_) link.readable = true;
}

void Mailbox::DropUnsent(int rank) {
  if (auto outbox = outboxes_.find(rank); outbox != outboxes_.end()) {
    waiting_cells_ -= outbox->second.waiting.size();
    outbox->second.waiting.clear();
  }
  auto link = links_.find(rank);
  if (link == links_.end() || link->second.broken) return;
  // treat it like a broken link: do not wait for a connection either
  if (link->second.fd < 0) link->second.broken = true;
}

bool Mailbox::Receive(const Handler& handler, bool eager) {
  unread_ = false;
  bool any = own_ && ReceiveByInbox(handler);
  const bool look = eager && links_.size() <= kFewLinks;
  for (auto& [rank, link] : links_) {
    if (link.fd >= 0 && (link.readable || look)) any |= ReceiveByLink(rank, link, handler);
  }
  return any;
}

// Pass the message to the handler and return how many of its bytes are tensor data.
size_t Mailbox::Handle(const Handler& handler, Tally* data_counter, int from, std::string_view message) {
  data_at_hand_ = 0;
  data_counter_ = data_counter;
  handler(from, message);
  data_counter_ = nullptr;
  return std::min(data_at_hand_, message.size());
}

bool Mailbox::ReceiveByInbox(const Handler& handler) {
  bool any = false;
  while (InboxCell* cell = own_->Peek()) {
    any = true;
    char bytes[InboxCell::kPayload];
    const size_t length = std::min<size_t>(cell->length, sizeof bytes);
    std::memcpy(bytes, cell->payload, length);
    const uint32_t writer = cell->writer;
    const bool more = cell->more;
    own_->Advance();  // advance before the handler runs, because it may cause the writer to send more
    auto begun = partial_.find(writer);
    if (!more && begun == partial_.end()) {
      Handle(handler, memory_counter(), static_cast<int>(writer), std::string_view(bytes, length));
      continue;
    }
    std::string& whole = begun == partial_.end() ? partial_[writer] : begun->second;
    whole.append(bytes, length);
    if (more) continue;
    const std::string message = std::move(whole);
    partial_.erase(writer);
    Handle(handler, memory_counter(), static_cast<int>(writer), message);
  }
  return any;
}

bool Mailbox::ReceiveByLink(int rank, Link& link, const Handler& handler) {
  bool any = false;
  for (;;) {
    const bool last = !link.refused.empty();  // if a send has failed, no data will arrive after what is there now
    const FrameIo io = link.reader->Fill(link.fd, !link.readable);
    std::string_view message;
    FrameReader::Result result;
    while ((result = link.reader->Next(&message)) == FrameReader::Result::kMessage) {
      any = true;
      const size_t whole = kFrameHeaderSize + message.size();
      const size_t data = Handle(handler, &connector_->traffic.data_received, rank, message);
      connector_->traffic.control_received.Add(whole - data);
    }
    if (any) link.heard = std::chrono::steady_clock::now();
    if (result == FrameReader::Result::kCorrupt) {
      Break(rank, link, "a control frame was corrupt");
    } else if (io == FrameIo::kClosed) {
      Break(rank, link, "connection closed");
    } else if (io == FrameIo::kFailed) {
      Break(rank, link, std::strerror(link.reader->error()));
    } else if (io == FrameIo::kAgain || (!last && !link.refused.empty())) {
      continue;
    } else if (last) {
      Break(rank, link, link.refused);
    }
    link.readable = false;
    return any;
  }
}

void Mailbox::Break(int rank, Link& link, const std::string& why) {
  if (link.broken) return;
  link.broken = true;
  if (link.fd >= 0) close(link.fd);
  link.fd = -1;
  broken_.emplace_back(rank, why);
}

std::vector<std::pair<int, std::string>> Mailbox::TakeBroken() {
  std::vector<std::pair<int, std::string>> taken;
  taken.swap(broken_);
  return taken;
}

}  // namespace hvd
