// SPDX-License-Identifier: Apache-2.0
// Moves gradients that autograd has just created into shared memory while they are still in the CPU cache. There they
// are reduced without staging, and the memory they leave is warm for the next gradient. For the user such a gradient is
// like any other: its buffer is not reused while any tensor refers to it.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/python/tensor_maker.h"
#include "bindings/python/tensor_reader.h"

namespace hvd_python {

class GradientHome;

// Finds out whether anything but its parameter refers to a gradient or its memory, because only a gradient without such
// external references may be replaced. A gradient that a hook of the user has seen, or that was added to a tensor of
// the user, is left alone, because reference counts do not distinguish the user's references from autograd's temporary
// ones.
class Onlookers {
 public:
  // `storage_count` returns the number of tensors that share the storage at an address.
  explicit Onlookers(nanobind::callable storage_count);
  // Store the reference counts of this parameter's gradient as the expected values for all others. Call in a hook,
  // where nothing else can refer to the gradient.
  void Learn(nanobind::handle parameter);
  bool AreNone(nanobind::handle parameter, nanobind::handle gradient) const;

 private:
  bool IsFresh(nanobind::handle parameter, nanobind::handle gradient) const;
  int64_t Storages(nanobind::handle gradient) const;

  const nanobind::callable storage_count_;
  const nanobind::object hooks_, requires_grad_, version_, untyped_storage_, address_;  // attribute names
  Py_ssize_t references_ = -1;
  int64_t storages_ = -1;
};

// Shared gradient buffers of one optimizer. All methods need the GIL. This class refers to no parameter or gradient,
// because hooks hold it and the garbage collector cannot look into them.
class GradientHomes {
 public:
  // `dtypes`: types of gradients that may move; `least`: number of bytes from which moving pays.
  GradientHomes(nanobind::object reader, nanobind::object maker, nanobind::object onlookers,
                const std::vector<int>& dtypes, uint64_t least);

  uint64_t least() const { return least_; }
  // Allocate buffers in this world from now on. Buffers in another world stay with the gradients in them.
  void MoveTo(nanobind::handle world);
  // Move the gradient of a parameter into its shared buffer if possible. Call in the post-accumulate-grad hook.
  void Adopt(uint32_t number, nanobind::handle parameter);

 private:
  // Remove and return the buffer if it is free, allocating one if needed; return null if it is in use or allocation
  // fails.
  std::shared_ptr<GradientHome> VacantHome(uint32_t number, size_t bytes);

  const nanobind::object reader_object_, maker_object_, onlookers_object_;  // keep the three below alive
  const TensorReader* const reader_;
  const TensorMaker* const maker_;
  const Onlookers* const onlookers_;
  uint64_t movable_ = 0;  // one bit for each dtype that may move
  const uint64_t least_;
  nanobind::object world_;  // null until MoveTo
  hvd_world* address_ = nullptr;
  std::vector<std::shared_ptr<GradientHome>> homes_;
  const nanobind::object grad_;  // attribute name
};

void BindGradientHomes(nanobind::module_& module);

}  // namespace hvd_python
