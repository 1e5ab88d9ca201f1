// SPDX-License-Identifier: Apache-2.0
// Releases Python's lock (the GIL) while a thread waits for the engine.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

// Releases the GIL in a scope, as nb::gil_scoped_release does, but without its checks. If the interpreter exits
// meanwhile, the thread stops in the destructor (see personality.cc). It then holds no lock of the engine, and nothing
// waits for it at exit.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace hvd_python
