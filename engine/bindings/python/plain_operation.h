// SPDX-License-Identifier: Apache-2.0
// A collective on a plain array under way, from its submission to the array that is its result.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>

#include "bindings/python/arrays.h"
#include "bindings/python/members.h"

namespace hvd_python {

constexpr int kMaxDimensions = 64;  // NumPy's limit

// What all such operations share.
struct Workshop {
  nanobind::object reader_object;  // keeps `reader`
  const ArrayReader* reader;       // nullptr: arrays are not what they should be
  nanobind::callable translate;    // (EngineError, name) → the exception that users see
  nanobind::callable keep;         // takes memory that the engine may write to until it stops
};

class PlainOperation {
 public:
  // Of the result: an array that the caller made, memory that the engine allocates, or that and the received splits.
  enum class Result { kOutput, kGathered, kGatheredAndSplits };

  PlainOperation(const Workshop* workshop, const Member& member, nanobind::handle input, const PlainArray& plain,
                 Result result, nanobind::object output)
      : workshop_(workshop),
        owner_(member.owner),
        world_(member.world),
        members_(static_cast<int>(member.ranks.size())),
        input_(nanobind::borrow(input)),
        result_(result),
        output_(std::move(output)) {
    if (result != Result::kOutput) RememberShape(plain);
  }

  // Raises what users see if the engine refuses it. `op` but for its name.
  void Submit(int32_t set_id, hvd_op* op, std::string name, bool will_wait);

  // Blocks until done; the result, or the exception that the operation ended with. Once only, but again after a signal.
  nanobind::object Wait();
  // The same where nobody can wait again.
  nanobind::object WaitOnce();

  bool Poll() const;
  int64_t handle() const { return handle_; }  // 0 once it is over

 private:
  void RememberShape(const PlainArray& plain);
  nanobind::object Collect(int64_t handle);
  nanobind::object Splits(int64_t handle) const;
  [[noreturn]] void Fail(const hvd_status& status) const;

  const Workshop* const workshop_;
  const nanobind::object owner_;  // the World
  hvd_world* const world_;
  const int members_;
  int64_t handle_ = 0;
  std::string name_;
  const nanobind::object input_;
  const Result result_;
  nanobind::object output_;
  // Of a gathered result. Copied: the user may give the input another shape meanwhile.
  nanobind::object dtype_;
  int ndim_ = 0;
  int64_t shape_[kMaxDimensions];
};

void BindPlainOperation(nanobind::module_& module);

}  // namespace hvd_python
