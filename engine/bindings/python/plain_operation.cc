// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/plain_operation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/python/table.h"

namespace nb = nanobind;

namespace hvd_python {
namespace {

struct Released {  // releases a handle at the end of the scope
  hvd_world* const world;
  const int64_t handle;
  ~Released() { Api()->release(world, handle); }
};

}  // namespace

PlainOperation::PlainOperation(const Workshop* workshop, const Member& member, nb::handle input,
                               const PlainArray& layout, Result result, NewArray output)
    : workshop_(workshop),
      owner_(member.owner),
      world_(member.world),
      members_(static_cast<int>(member.ranks.size())),
      input_(nb::borrow(input)),
      result_(result),
      output_(std::move(output)) {
  if (output_.array.is_valid()) return;
  layout_.reset(new Layout);  // make_unique would fill it with zeros
  layout_->dtype_id = layout.dtype_id;
  layout_->ndim = layout.ndim;
  std::copy_n(layout.shape, layout.ndim, layout_->shape);
}

void PlainOperation::Submit(int32_t set_id, hvd_op* op, std::string name, bool will_wait) {
  waits_ = will_wait;
  name_ = std::move(name);
  op->name = name_.c_str();
  if (!will_wait) {
    held_ = workshop_->arrays->Hold(input_);
    data_ = op->input;
    elements_ = ElementsOf(op->ndim, op->shape);
  }
  hvd_status status;
  handle_ = Api()->submit(world_, set_id, op, 1, nullptr, will_wait ? HVD_WILL_WAIT : 0, nullptr, nullptr, &status);
  if (!handle_) Fail(status);
}

nb::object PlainOperation::Wait() {
  hvd_status status;
  if (result_ == Result::kOutput) {
    if (!output_.array.is_valid())
      output_.array = workshop_->arrays->Make(&output_, layout_->dtype_id, layout_->ndim, layout_->shape);
    const int32_t code = FinishUnlocked(world_, handle_, !waits_, &status);
    handle_ = 0;
    if (code != HVD_OK) Fail(status);
    CheckInput();
    return std::move(output_.array);
  }
  const bool done = !waits_ && Poll();
  const int32_t code = done ? Api()->wait(world_, handle_, 0, &status) : WaitUnlocked(world_, handle_, -1, &status);
  const Released over{world_, std::exchange(handle_, 0)};
  if (code != HVD_OK) Fail(status);
  CheckInput();
  return Collect(over.handle);
}

// Throw if the array was moved: the engine worked on the memory that it had at submission.
void PlainOperation::CheckInput() const {
  if (waits_ || workshop_->arrays->LiesAt(input_, data_, elements_)) return;
  throw nb::value_error(MovedText(name_).c_str());
}

bool PlainOperation::Poll() const { return Api()->poll(world_, handle_) == 1; }

nb::object PlainOperation::Collect(int64_t handle) {
  void* const data = Api()->take_output(world_, handle, 0, layout_->shape, nullptr);
  if (!data) throw nb::value_error("the engine has no output for this operation");
  nb::object gathered = workshop_->arrays->Adopt(data, layout_->dtype_id, layout_->ndim, layout_->shape);
  if (result_ == Result::kGathered) return gathered;
  return nb::make_tuple(std::move(gathered), Splits(handle));
}

nb::object PlainOperation::Splits(int64_t handle) const {
  std::vector<int64_t> rows(static_cast<size_t>(members_));
  const int64_t count = Api()->received_splits(world_, handle, rows.data(), members_);
  rows.resize(static_cast<size_t>(count));
  const bool small = std::all_of(rows.begin(), rows.end(), [](int64_t row) { return row <= INT32_MAX; });
  const int dtype_id = small ? HVD_INT32 : HVD_INT64;
  NewArray splits = workshop_->arrays->Allocate(dtype_id, 1, &count);
  if (small) {
    std::copy(rows.begin(), rows.end(), static_cast<int32_t*>(splits.data));
  } else {
    std::copy(rows.begin(), rows.end(), static_cast<int64_t*>(splits.data));
  }
  return workshop_->arrays->Make(&splits, dtype_id, 1, &count);
}

void PlainOperation::Fail(const hvd_status& status) const {
  nb::object error = workshop_->translate(ErrorOf(status), nb::str(name_.c_str()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

}  // namespace hvd_python
