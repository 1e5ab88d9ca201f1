// SPDX-License-Identifier: Apache-2.0
// A collective on a plain array under way, from its submission to the array that is its result.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/python/members.h"
#include "bindings/python/plain_arrays.h"

namespace hvd_python {

// What all such operations share.
struct Workshop {
  nanobind::object arrays_object;  // keeps `arrays`
  const PlainArrays* arrays;       // nullptr: arrays are not what they should be
  nanobind::callable translate;    // (EngineError, name) -> the exception that users see
};

class PlainOperation {
 public:
  // An array of the caller's, memory that the engine allocates, or that and the received splits.
  enum class Result { kOutput, kGathered, kGatheredAndSplits };

  // `layout`: of the result, but for its number of rows if the engine allocates it.
  PlainOperation(const Workshop* workshop, const Member& member, nanobind::handle input, const PlainArray& layout,
                 Result result, NewArray output);

  // `op` but for its name. Raises what users see if the engine refuses it.
  void Submit(int32_t set_id, hvd_op* op, std::string name, bool will_wait);

  // Blocks until done; the result, or the exception that the operation ended with. Once only.
  nanobind::object Wait();

  bool Poll() const;
  // After a signal broke the wait (Ctrl-C): the engine goes on, and still reads and writes the arrays.
  bool unfinished() const { return handle_ != 0; }

 private:
  // Of a result still to be made. A copy: the user may give the input another shape meanwhile.
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
  nanobind::object owner_;  // the World
  hvd_world* world_;
  int members_;
  bool waits_ = false;
  int64_t handle_ = 0;
  std::string name_;
  nanobind::object input_;
  nanobind::object held_;       // of the input, unless the caller waits at once
  const void* data_ = nullptr;  // where it lay
  int64_t elements_ = 0;
  Result result_;
  NewArray output_;
  std::unique_ptr<Layout> layout_;
};

}  // namespace hvd_python
