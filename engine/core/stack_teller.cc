// SPDX-License-Identifier: Apache-2.0
#include "core/stack_teller.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

namespace hvd {

struct StackTeller::Telling {
  Tell tell;
  TellOf tell_of;
  void* context;
  uint64_t thread;
  std::atomic<bool> done{false};
  uint64_t bytes = 0;
  char text[kMostBytes];

  // Use a POSIX thread, because an interpreter that exits may end it at any point, which std::thread would not survive.
  static void* Run(void* argument) {
    std::unique_ptr<std::shared_ptr<Telling>> mine(static_cast<std::shared_ptr<Telling>*>(argument));
    Telling& telling = **mine;
    telling.bytes = telling.tell ? telling.tell(telling.context, telling.text, sizeof telling.text)
                                 : telling.tell_of(telling.context, telling.thread, telling.text, sizeof telling.text);
    telling.done.store(true, std::memory_order_release);
    return nullptr;
  }
};

void StackTeller::Ask(Clock::time_point now, uint64_t thread) {
  if (!can_tell() || asked_) return;
  // For a single thread, only the answer to this question counts; ignore the answer to an earlier one.
  if (tell_of_ && telling_ && !telling_->done.load(std::memory_order_acquire)) return;
  if (tell_of_) telling_.reset();
  asked_ = true;
  since_ = now;
  if (telling_) return;  // an earlier question is still open and its answer will do
  auto telling = std::make_shared<Telling>();
  telling->tell = tell_;
  telling->tell_of = tell_of_;
  telling->thread = thread;
  telling->context = context_;
  auto shared = std::make_unique<std::shared_ptr<Telling>>(telling);
  pthread_attr_t attributes;
  pthread_t teller;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&teller, &attributes, Telling::Run, shared.get()) == 0) {
    shared.release();
    telling_ = std::move(telling);
  } else {
    asked_ = false;
  }
  pthread_attr_destroy(&attributes);
}

std::optional<std::string> StackTeller::Answer(Clock::time_point now) {
  if (!asked_) return std::nullopt;
  if (telling_->done.load(std::memory_order_acquire)) {
    asked_ = false;
    std::string text(telling_->text, std::min<uint64_t>(telling_->bytes, kMostBytes));
    telling_.reset();
    return text;
  }
  if (now - since_ < kLimit) return std::nullopt;
  asked_ = false;
  return "no answer within " + std::to_string(kLimit.count()) +
         " s: it is in native code that keeps Python's lock (the GIL). `hvd stacks PID` can look at it";
}

}  // namespace hvd
