// SPDX-License-Identifier: Apache-2.0
// A collective on a simple array, from its submission to the array with the result.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/python/members.h"
#include "bindings/python/plain_arrays.h"

namespace hvd_python {

// The call context that all these operations share.
struct Workshop {
  nanobind::object arrays_object;  // keeps `arrays` alive
  const PlainArrays* arrays;       // nullptr: this framework's arrays cannot be read natively
  nanobind::callable translate;    // (EngineError, name) -> the exception for the user
};

class PlainOperation {
 public:
  // Where the result goes: an array that exists or is being created, memory that the engine allocates, or that memory
  // together with the received splits.
  enum class Result { kOutput, kGathered, kGatheredAndSplits };

  // `layout` is that of the result, except for its number of rows if the engine allocates it.
  PlainOperation(const Workshop* workshop, const Member& member, nanobind::handle input, const PlainArray& layout,
                 Result result, NewArray output);

  // Submit `op` under this name. Raises the user's exception if the engine refuses it.
  void Submit(int32_t set_id, hvd_op* op, std::string name, bool will_wait);

  // Block until the operation is done. Return the result or throw its error. Call only once.
  nanobind::object Wait();

  bool Poll() const;
  // Return true if a signal (Ctrl-C) interrupted the wait: the engine then still reads and writes the arrays.
  bool unfinished() const { return handle_ != 0; }

 private:
  // Layout of a result that is still to be created. It is a copy, because the user may change the input's shape
  // meanwhile.
  struct Layout {
    int dtype_id;
    int ndim;
    int64_t shape[kMaxDimensions];
  };
  nanobind::object Collect(int64_t handle);
  nanobind::object Splits(int64_t handle) const;
  [[noreturn]] void Fail(const hvd_status& status) const;
  void CheckInput() const;

  const Workshop* workshop_;
  nanobind::object owner_;  // Python's World object
  hvd_world* world_;
  int members_;
  bool waits_ = false;
  int64_t handle_ = 0;
  std::string name_;
  nanobind::object input_;
  nanobind::object held_;       // holds the input's memory, unless the caller waits at once
  const void* data_ = nullptr;  // address of the input at submission
  int64_t elements_ = 0;
  Result result_;
  NewArray output_;
  std::unique_ptr<Layout> layout_;
};

}  // namespace hvd_python
