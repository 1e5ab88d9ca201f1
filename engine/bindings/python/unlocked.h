// SPDX-License-Identifier: Apache-2.0
// Python's lock, released while a thread waits for the engine.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

// Like nb::gil_scoped_release, but for threads that the end of the program finds here. An interpreter that is ending
// ends every thread that asks for its lock, by unwinding it through our frames, which takes the process down
// ("terminate called without an active exception"). Such a thread stays here instead, and goes with the process.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    StayIfEnding();
    PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Notes, at the end of the program, that only the calling thread is still to return to Python.
  static void NoteEnd();

 private:
  static void StayIfEnding();

  PyThreadState* state_;
};

// Has NoteEnd called after all other functions of the module atexit that are registered from now on.
void WatchForEnd(nanobind::module_& module);

}  // namespace hvd_python
