// SPDX-License-Identifier: Apache-2.0
// Python's lock (the GIL), released while a thread waits for the engine.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

// The same as nb::gil_scoped_release, without its checks. A thread that an ending interpreter finds in the destructor
// stays there (see personality.cc). It holds no lock of the engine's, and nothing at exit waits for it.
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
