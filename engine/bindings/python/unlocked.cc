// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/unlocked.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace hvd_python {

namespace {

std::atomic<bool> ending{false};
pthread_t last;

}  // namespace

void Unlocked::NoteEnd() {
  last = pthread_self();
  ending.store(true, std::memory_order_release);
}

void Unlocked::StayIfEnding() {
  if (!ending.load(std::memory_order_acquire) || pthread_equal(last, pthread_self())) return;
  for (;;) pause();
}

void WatchForEnd(nanobind::module_& module) {
  module.def("_note_end", &Unlocked::NoteEnd);
  nanobind::module_::import_("atexit").attr("register")(module.attr("_note_end"));
}

}  // namespace hvd_python
