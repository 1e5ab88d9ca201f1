// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/gradient_table.h"

#include <hvd/engine.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/members.h"
#include "bindings/python/table.h"
#include "bindings/python/tensor_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

// State of a gradient for the other ranks, as in src/horovod/torch/gradients/rounds.py.
enum Standing : uint8_t { kFrozen, kOpen, kOpenSparse, kDue, kDueSparse, kDone };

using Numbers = std::vector<uint32_t>;

std::string ReplacedText(const std::string& name) {
  return "the gradient of '" + name +
         "' was replaced (p.grad = ...) between backward() and step(), while it was being reduced: the new one is not "
         "reduced, and ranks would diverge. Call optimizer.synchronize() before you change gradients, then step() "
         "inside `with optimizer.skip_synchronize():`; or set HOROVOD_TORCH_WAIT_IN_BACKWARD=1, so that gradients are "
         "complete when backward() returns";
}

struct Row {
  std::string name;  // name of its allreduce
  nb::object parameter;
  nb::object place;    // the tensor that its gradient must be; null: any tensor
  nb::object reduced;  // weak reference to the gradient that was last reduced; null: none in this round
  nb::object held;     // storage of the gradient while it is in flight; null if its thread waits for the result
  const void* data;    // address of that gradient
  int64_t elements;
  // backward passes until it is due; 0: its reduction has begun, and has ended unless it is in flight
  int passes_left;
  bool in_flight;     // true for members of a group even while they wait for the others
  bool postponed;     // due, but its reduction begins in step(): a further pass comes too late
  bool by_hand;       // never submitted here, because the caller handles it
  bool small;         // may be bundled
  bool bundled;       // in the bundle that is being built
  bool sparse;        // true if its gradients are sparse
  Standing standing;  // kFrozen is never stored, but computed in Standings()
};

// Small gradients that are sent as one tensor, because handling each one separately takes longer than its reduction.
// All ranks must bundle the same gradients; they compare `key` to make sure.
struct Bundle {
  struct Piece {
    uint32_t number;
    nb::object grad;
    void* data;
    size_t bytes;
  };

  std::vector<Piece> pieces;
  int32_t dtype = -1;
  uint64_t key = 0;
  size_t bytes = 0;
  int64_t elements = 0;
  // The pieces in one buffer, once the bundle is submitted.
  std::unique_ptr<std::vector<std::byte>> cargo;

  void Clear() {
    pieces.clear();
    dtype = -1;
    key = 0;
    bytes = 0;
    elements = 0;
  }
  void Add(uint32_t number, const std::string& name, nb::object grad, const PlainTensor& plain) {
    const int64_t count = ElementsOf(plain.ndim, plain.shape);
    const size_t size = static_cast<size_t>(count) * hvd_item_bytes(plain.dtype_id);
    dtype = plain.dtype_id;
    pieces.push_back({number, std::move(grad), plain.data, size});
    bytes += size;
    elements += count;
    // The key depends on the names, by which single gradients are matched too, because ranks may number the gradients
    // differently.
    for (const char letter : name) Mix(static_cast<uint8_t>(letter));
    Mix(static_cast<uint64_t>(dtype));
    Mix(static_cast<uint64_t>(count));
  }
  void Mix(uint64_t word) {
    key = (key ^ word) * 0x9E3779B97F4A7C15u;
    key ^= key >> 32;
  }
  void Pack() {
    if (!cargo) cargo = std::make_unique<std::vector<std::byte>>();
    cargo->resize(bytes);
    std::byte* to = cargo->data();
    for (const Piece& piece : pieces) {
      std::memcpy(to, piece.data, piece.bytes);
      to += piece.bytes;
    }
  }
  void Unpack() {
    const std::byte* from = cargo->data();
    for (const Piece& piece : pieces) {
      std::memcpy(piece.data, from, piece.bytes);
      from += piece.bytes;
    }
  }
};

// The gradients of one optimizer by number. All methods need the GIL.
class GradientTable {
 public:
  // `dtypes`: types that are sent without a compressor.
  GradientTable(nb::object reader, const std::vector<int>& dtypes, int op, double prescale, double postscale, int wire)
      : reader_object_(std::move(reader)), reader_(nb::cast<const TensorReader*>(reader_object_)) {
    for (const int dtype : dtypes) travels_ |= uint64_t{1} << dtype;
    op_.size = sizeof op_;
    op_.kind = HVD_ALLREDUCE;
    op_.reduce_op = op;
    op_.root = -1;
    op_.device = -1;
    op_.prescale = prescale;
    op_.postscale = postscale;
    op_.wire_dtype = wire;
    attribute_ = nb::steal(PyUnicode_InternFromString("grad"));
    trained_ = nb::steal(PyUnicode_InternFromString("requires_grad"));
  }

  // `small`: may be bundled with other gradients.
  void Add(std::string name, nb::object parameter, bool small) {
    Row row{};
    row.name = std::move(name);
    row.parameter = std::move(parameter);
    row.passes_left = passes_;
    row.small = small;
    row.standing = kOpen;
    rows_.push_back(std::move(row));
  }
  // Change the name of a gradient. Nothing of this number may be in flight.
  void Rename(uint32_t number, std::string name) { rows_.at(number).name = std::move(name); }
  void SetPlace(uint32_t number, nb::object place) { rows_.at(number).place = std::move(place); }
  void LeaveToCaller(uint32_t number) { rows_.at(number).by_hand = true; }
  void SetSparse(uint32_t number, bool sparse) {
    Row& row = rows_.at(number);
    row.sparse = sparse;
    if (row.standing == kDue || row.standing == kDueSparse) row.standing = Due(row);
  }

  // ---- rounds

  void Restart(int passes) {
    passes_ = passes;
    DropBundle();
    for (Row& row : rows_) {
      Forget(row);
      row.reduced.reset();
      row.held.reset();
    }
  }

  // Count one backward pass for each gradient. Return those that have no passes left, and the first one that had none
  // before.
  std::pair<Numbers, std::optional<uint32_t>> CountDown(const Numbers& numbers) {
    Numbers ready;
    ready.reserve(numbers.size());
    for (const uint32_t number : numbers) {
      Row& row = rows_.at(number);
      if (row.passes_left == 0) {
        // Allowed only if the reduced gradient was dropped since then, for example by a gradient scaler that skipped
        // the step.
        if (row.in_flight || row.postponed || IsReduced(row)) return {std::move(ready), number};
        Forget(row);
      }
      if (--row.passes_left > 0) continue;
      row.standing = Due(row);
      ready.push_back(number);
    }
    return {std::move(ready), std::nullopt};
  }

  // Return the states of all gradients. A gradient that was reduced and then removed without the optimizer is expected
  // again.
  nb::bytes Standings() {
    std::string standings;
    standings.reserve(rows_.size());
    for (Row& row : rows_) {
      if (row.standing == kDone && IsNone(row)) Forget(row);
      Standing standing = row.standing;
      if (standing == kOpen) standing = !IsTrained(row) ? kFrozen : row.sparse ? kOpenSparse : kOpen;
      standings.push_back(static_cast<char>(standing));
    }
    return nb::bytes(standings.data(), standings.size());
  }

  // Mark as done the gradients with a nonzero byte in `wanted`, because all ranks reduce them. Return those whose
  // reduction has not begun on this rank.
  Numbers Agree(nb::bytes wanted) {
    Numbers missing;
    const char* const bytes = wanted.c_str();
    for (uint32_t number = 0; number < rows_.size() && number < wanted.size(); ++number) {
      if (!bytes[number]) continue;
      Row& row = rows_[number];
      row.standing = kDone;
      if (row.passes_left) missing.push_back(number);
    }
    return missing;
  }

  bool InFlight(const Numbers& numbers) const {
    return std::all_of(numbers.begin(), numbers.end(), [this](uint32_t number) { return rows_.at(number).in_flight; });
  }

  // Put the gradients that may be bundled into a new bundle. Return its key; ranks with equal keys may send it. 0: no
  // bundle.
  uint64_t MakeBundle(Numbers numbers) {
    DropBundle();
    std::sort(numbers.begin(), numbers.end());  // backward() may have reached them in another order on other ranks
    PlainTensor plain;
    for (const uint32_t number : numbers) {
      Row& row = rows_.at(number);
      if (!row.small) continue;
      nb::object grad = GradientOf(row);
      if (!IsPlain(row, grad, &plain) || (!bundle_.pieces.empty() && plain.dtype_id != bundle_.dtype)) continue;
      row.bundled = true;
      bundle_.Add(number, row.name, std::move(grad), plain);
    }
    if (bundle_.pieces.size() < 2) DropBundle();
    return bundle_.key;
  }
  void DropBundle() {
    for (const Bundle::Piece& piece : bundle_.pieces) rows_[piece.number].bundled = false;
    bundle_.Clear();
    if (bundle_sent_) bundle_.cargo.release();  // the caller has not waited for it, so the engine may still write there
    bundle_sent_ = false;
  }
  // Copy the reduced bundle back to its gradients.
  void Unpack() {
    if (!bundle_sent_) return;
    bundle_sent_ = false;
    bundle_.Unpack();
    DropBundle();
  }

  uint64_t bundles() const { return bundles_; }

  void Postpone(const Numbers& numbers) {
    for (const uint32_t number : numbers) rows_.at(number).postponed = true;
  }

  // Return the gradients that may be bundled, and the others.
  std::pair<Numbers, Numbers> SplitSmall(const Numbers& numbers) const {
    std::pair<Numbers, Numbers> result;
    for (const uint32_t number : numbers) (rows_.at(number).small ? result.first : result.second).push_back(number);
    return result;
  }

  // Submit the simple gradients under one handle (0 if there are none), each separately, but those in the bundle as one
  // tensor named `bundle`. Without that name, nothing is bundled. Return the handle and the numbers of the gradients
  // that the caller must handle.
  std::pair<int64_t, Numbers> Start(const Numbers& numbers, const Member& member, bool will_wait, nb::list sent,
                                    nb::list grads, std::optional<std::string> bundle) {
    if (!bundle && !bundle_sent_) DropBundle();
    Numbers others;
    PlainTensor plain;
    ops_.clear();
    extents_.clear();
    for (const uint32_t number : numbers) {
      Row& row = rows_.at(number);
      row.passes_left = 0;
      row.in_flight = true;
      row.postponed = false;
      if (row.standing == kOpen) row.standing = Due(row);
      if (row.bundled) continue;
      const nb::object grad = GradientOf(row);
      if (!IsPlain(row, grad, &plain)) {
        others.push_back(number);
        continue;
      }
      if (!will_wait) Hold(grad, plain, &row);
      grads.append(grad);
      sent.append(number);
      op_.name = row.name.c_str();
      op_.dtype = plain.dtype_id;
      op_.ndim = plain.ndim;
      op_.input = op_.output = plain.data;
      ops_.push_back(op_);
      extents_.insert(extents_.end(), plain.shape, plain.shape + plain.ndim);
    }
    const int64_t* shape = extents_.data();
    for (hvd_op& op : ops_) {
      op.shape = shape;
      shape += op.ndim;
    }
    const bool adds_bundle = bundle && !bundle_.pieces.empty();
    if (adds_bundle) AddBundle(*bundle, sent, grads);
    const int64_t handle = ops_.empty() ? 0 : Submit(member, ops_.data(), ops_.size(), will_wait);
    bundle_sent_ |= adds_bundle;
    bundles_ += adds_bundle;
    return {handle, std::move(others)};
  }

  // Record that gradients have been reduced. Throws if the program moved or replaced one of them meanwhile.
  void Land(const nb::list& numbers, const nb::list& grads) {
    const Row* moved = nullptr;
    const Row* replaced = nullptr;
    for (size_t i = 0; i < numbers.size(); ++i) {
      Row& row = rows_.at(nb::cast<uint32_t>(numbers[i]));
      row.in_flight = false;
      if (row.held) {  // if nothing is held, its thread waited for the result, and the program could not change it
        if (!reader_->LiesAt(nb::object(grads[i]), row.data, row.elements)) moved = &row;
        if (IsReplaced(row, grads[i])) replaced = &row;
      }
      row.held.reset();
      row.reduced = nb::steal(PyWeakref_NewRef(nb::object(grads[i]).ptr(), nullptr));
      if (!row.reduced) throw nb::python_error();
      // A weak reference cannot be part of a reference cycle. With many parameters there are many of them in every
      // step, and they would make the collector run over the whole heap more often.
      PyObject_GC_UnTrack(row.reduced.ptr());
    }
    if (moved) throw nb::value_error(MovedText(moved->name).c_str());
    if (replaced) throw nb::value_error(ReplacedText(replaced->name).c_str());
  }

  // Report references to Python's garbage collector, because a parameter may refer to its optimizer.
  static int Traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    for (const Row& row : nb::inst_ptr<GradientTable>(self)->rows_) {
      Py_VISIT(row.parameter.ptr());
      Py_VISIT(row.place.ptr());
    }
    return 0;
  }
  static int Clear(PyObject* self) {
    std::vector<Row> rows = std::move(nb::inst_ptr<GradientTable>(self)->rows_);
    return 0;
  }

 private:
  nb::object GradientOf(const Row& row) const {
    nb::object grad = nb::steal(PyObject_GetAttr(row.parameter.ptr(), attribute_.ptr()));
    if (!grad) throw nb::python_error();
    return grad;
  }

  void AddBundle(const std::string& name, nb::list& sent, nb::list& grads) {
    bundle_.Pack();
    for (const Bundle::Piece& piece : bundle_.pieces) {
      grads.append(piece.grad);
      sent.append(piece.number);
    }
    op_.name = name.c_str();
    op_.dtype = bundle_.dtype;
    op_.ndim = 1;
    op_.shape = &bundle_.elements;
    op_.input = op_.output = bundle_.cargo->data();
    ops_.push_back(op_);
  }

  static Standing Due(const Row& row) { return row.sparse ? kDueSparse : kDue; }

  void Forget(Row& row) const {
    row.passes_left = passes_;
    row.in_flight = false;
    row.postponed = false;
    row.standing = kOpen;
  }

  bool IsNone(const Row& row) const { return nb::object(row.parameter.attr(attribute_)).is_none(); }
  bool IsTrained(const Row& row) const { return nb::object(row.parameter.attr(trained_)).ptr() == Py_True; }
  void Hold(const nb::object& grad, const PlainTensor& plain, Row* row) const {
    row->held = reader_->Hold(grad);
    row->data = plain.data;
    row->elements = ElementsOf(plain.ndim, plain.shape);
  }

  // Return true if the parameter has another gradient than the one that was reduced. A gradient that the program has
  // dropped does not count.
  bool IsReplaced(const Row& row, nb::handle reduced) const {
    const nb::object grad = GradientOf(row);
    return !grad.is_none() && !grad.is(reduced);
  }

  bool IsReduced(const Row& row) const {
    if (!row.reduced) return false;
    const nb::object reduced = row.reduced();
    return !reduced.is_none() && reduced.is(row.parameter.attr(attribute_));
  }

  bool IsPlain(const Row& row, const nb::object& grad, PlainTensor* plain) const {
    if (row.by_hand || (row.place && !grad.is(row.place))) return false;
    return reader_->Read(grad.ptr(), plain) && (travels_ >> plain->dtype_id & 1);
  }

  static int64_t Submit(const Member& member, const hvd_op* ops, size_t count, bool will_wait) {
    hvd_status status;
    const int64_t handle = Api()->submit(member.world, member.set_id, ops, static_cast<int32_t>(count), nullptr,
                                         will_wait ? HVD_WILL_WAIT : 0, nullptr, nullptr, &status);
    if (!handle) Raise(status);
    return handle;
  }

  const nb::object reader_object_;  // keeps `reader_` alive
  const TensorReader* const reader_;
  nb::object attribute_;
  nb::object trained_;
  uint64_t travels_ = 0;  // one bit for each dtype that is sent without a compressor
  int passes_ = 1;
  hvd_op op_{};              // fields that all operations share
  std::vector<hvd_op> ops_;  // kept, like `extents_`, to reuse its memory
  std::vector<int64_t> extents_;
  std::vector<Row> rows_;
  Bundle bundle_;
  bool bundle_sent_ = false;
  uint64_t bundles_ = 0;
};

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(GradientTable::Traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(GradientTable::Clear)},
                       {0, nullptr}};

}  // namespace

void BindGradientTable(nb::module_& module) {
  module.def("replaced_text", &ReplacedText, "name"_a);
  nb::class_<GradientTable>(module, "GradientTable", nb::type_slots(slots))
      .def(nb::init<nb::object, const std::vector<int>&, int, double, double, int>(), "reader"_a, "dtypes"_a, "op"_a,
           "prescale"_a, "postscale"_a, "wire"_a)
      .def("add", &GradientTable::Add, "name"_a, "parameter"_a, "small"_a)
      .def("rename", &GradientTable::Rename, "number"_a, "name"_a)
      .def("set_place", &GradientTable::SetPlace, "number"_a, "place"_a)
      .def("leave_to_caller", &GradientTable::LeaveToCaller, "number"_a)
      .def("set_sparse", &GradientTable::SetSparse, "number"_a, "sparse"_a)
      .def("restart", &GradientTable::Restart, "passes"_a)
      .def("count_down", &GradientTable::CountDown, "numbers"_a)
      .def("standings", &GradientTable::Standings)
      .def("agree", &GradientTable::Agree, "wanted"_a)
      .def("in_flight", &GradientTable::InFlight, "numbers"_a)
      .def("make_bundle", &GradientTable::MakeBundle, "numbers"_a)
      .def("unpack", &GradientTable::Unpack)
      .def_prop_ro("bundles", &GradientTable::bundles)
      .def("postpone", &GradientTable::Postpone, "numbers"_a)
      .def("split_small", &GradientTable::SplitSmall, "numbers"_a)
      .def("start", &GradientTable::Start, "numbers"_a, "member"_a, "will_wait"_a, "sent"_a, "grads"_a,
           "bundle"_a.none())
      .def("land", &GradientTable::Land, "numbers"_a, "grads"_a);
}

}  // namespace hvd_python
