// SPDX-License-Identifier: Apache-2.0
// Gradients that autograd has just made move into shared memory while they are still in the cache: there they are
// reduced without staging, and the memory they leave is at hand for the next gradient, warm. To the user a gradient in
// its home is one like any other: nobody else writes to it as long as anything looks at it.
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

// Who looks at a gradient and at its memory. Only one that is known to its parameter alone may be replaced. Where a
// hook of the user's has seen it, or where it was added to what the user has put there, it is left alone: counts do not
// tell the user's references from those that autograd holds for the time being.
class Onlookers {
 public:
  // `storage_count`: gives the number of tensors that share a storage, by the storage's address.
  explicit Onlookers(nanobind::callable storage_count);
  // Takes what it finds in a hook, where nobody else can know the gradient, as the measure for all others.
  void Learn(nanobind::handle parameter);
  bool AreNone(nanobind::handle parameter, nanobind::handle gradient) const;

 private:
  bool IsFresh(nanobind::handle parameter, nanobind::handle gradient) const;
  int64_t Storages(nanobind::handle gradient) const;

  const nanobind::callable storage_count_;
  const nanobind::object hooks_, requires_grad_, version_, untyped_storage_, address_;  // names
  Py_ssize_t references_ = -1;
  int64_t storages_ = -1;
};

// Behind the GIL. Knows no parameter and no gradient: hooks hold it, and the garbage collector cannot look into them.
class GradientHomes {
 public:
  // `dtypes`: of gradients that may move; `least`: bytes from which on it is worth it.
  GradientHomes(nanobind::object reader, nanobind::object maker, nanobind::object onlookers,
                const std::vector<int>& dtypes, uint64_t least);

  uint64_t least() const { return least_; }
  // Where homes are from now on; those in another world are left to whoever lives in them.
  void MoveTo(nanobind::handle world);
  // To be called in the hook that follows its accumulation.
  void Adopt(uint32_t number, nanobind::handle parameter);

 private:
  // Taken out of the table until somebody has moved in.
  std::shared_ptr<GradientHome> VacantHome(uint32_t number, size_t bytes);

  const nanobind::object reader_object_, maker_object_, onlookers_object_;  // keep the three below
  const TensorReader* const reader_;
  const TensorMaker* const maker_;
  const Onlookers* const onlookers_;
  uint64_t movable_ = 0;  // bit by bit, by dtype
  const uint64_t least_;
  nanobind::object world_;  // null: none yet
  hvd_world* address_ = nullptr;
  std::vector<std::shared_ptr<GradientHome>> homes_;
  const nanobind::object grad_;  // a name
};

void BindGradientHomes(nanobind::module_& module);

}  // namespace hvd_python
