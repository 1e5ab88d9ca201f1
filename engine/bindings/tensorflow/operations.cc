// SPDX-License-Identifier: Apache-2.0
// Registration of the operations when TensorFlow loads this library: definitions, shapes and kernels.
#include <string>

#include "bindings/tensorflow/c_api.h"
#include "bindings/tensorflow/registry.h"
#include "bindings/tensorflow/task.h"

namespace hvd::tensorflow {
namespace {

class Shape {
 public:
  Shape() : handle_(Tf().TF_NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { Tf().TF_DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  TF_ShapeHandle* get() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

constexpr size_t kUnknownSize = static_cast<size_t>(-1);

void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = Tf().TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < count; ++i) {
    const Shape shape;
    Tf().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    Tf().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

// Set a result shape whose number of rows is unknown, because it depends on other ranks, or on the number of ranks when
// the graph runs.
void OtherRowsOf(TF_ShapeInferenceContext* context, int i, TF_Status* status) {
  const Shape shape;
  Tf().TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
  const int64_t known = Tf().TF_ShapeInferenceContextRankKnown(context, shape.get());
  const int64_t rank = known ? Tf().TF_ShapeInferenceContextRank(context, shape.get()) : 0;
  if (rank == 0) {
    Tf().TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
    return;
  }
  const Shape rows(Tf().TF_ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  const Shape rest, result;
  Tf().TF_ShapeInferenceContextSubshape(context, shape.get(), 1, rank, rest.get(), status);
  Tf().TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), rest.get(), result.get(), status);
  Tf().TF_ShapeInferenceContextSetOutput(context, i, result.get(), status);
}

void OtherRows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = Tf().TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < count; ++i) OtherRowsOf(context, i, status);
}

void RowsAndSplits(TF_ShapeInferenceContext* context, TF_Status* status) {
  OtherRowsOf(context, 0, status);
  const Shape splits(Tf().TF_ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  Tf().TF_ShapeInferenceContextSetOutput(context, 1, splits.get(), status);
}

void Scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(Tf().TF_ShapeInferenceContextScalar(context));
  Tf().TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

// Attributes that all collectives have; horovod/tensorflow/native.py sets and reads them.
constexpr const char* kReductionAttributes[] = {"reduce_op: int = 1", "root_rank: int = -1", "context: int = 0",
                                                "prescale_bits: int = 4607182418800017408",  // 1.0
                                                "postscale_bits: int = 4607182418800017408"};
constexpr const char* kNameAttributes[] = {"tensor_name: string = ''", "ignore_name_scope: bool = false",
                                           "program: int = 0"};

enum Question { kSize, kRank, kLocalSize, kLocalRank, kProcessSetIncluded };

constexpr const char* kTypeNames[][2] = {{"HorovodAllreduce", "HorovodGroupedAllreduce"},
                                         {"HorovodAllgather", "HorovodGroupedAllgather"},
                                         {"HorovodBroadcast", "HorovodGroupedBroadcast"},
                                         {"HorovodAlltoall", ""},
                                         {"HorovodReducescatter", "HorovodGroupedReducescatter"},
                                         {"", ""},
                                         {"HorovodJoin", ""}};

template <hvd_kind kind, bool grouped>
void* Create(TF_OpKernelConstruction* construction) {
  return new Kernel(kind, kTypeNames[kind][grouped], grouped, construction);
}

void Run(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Task::Start(*static_cast<const Kernel*>(kernel), context, done);
}

void Delete(void* kernel) { delete static_cast<Kernel*>(kernel); }

void Register(TF_OpDefinitionBuilder* definition, TF_KernelBuilder* kernel, const char* type) {
  const Status status;
  // Stateful operations are never pruned, merged or folded. native.py removes the control dependencies that would
  // serialise them in tf.function.
  Tf().TF_OpDefinitionBuilderSetIsStateful(definition, true);
  Tf().TF_RegisterOpDefinition(definition, status.get());
  Tf().TF_RegisterKernelBuilder(type, kernel, status.get());
}

template <hvd_kind kind, bool grouped>
void RegisterCollective() {
  const char* type = kTypeNames[kind][grouped];
  TF_OpDefinitionBuilder* definition = Tf().TF_NewOpDefinitionBuilder(type);
  for (const char* attribute : kNameAttributes) Tf().TF_OpDefinitionBuilderAddAttr(definition, attribute);
  if (kind == HVD_JOIN) {
    Tf().TF_OpDefinitionBuilderAddOutput(definition, "last_rank: int32");
    Tf().TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, Scalar);
  } else {
    for (const char* attribute : kReductionAttributes) Tf().TF_OpDefinitionBuilderAddAttr(definition, attribute);
    // Accept any type, because the parser of these texts does not know the 8-bit floats. Task checks the type.
    if (grouped) Tf().TF_OpDefinitionBuilderAddAttr(definition, "contents: string = ''");
    Tf().TF_OpDefinitionBuilderAddAttr(definition, grouped ? "T: list(type) >= 1" : "T: type");
    Tf().TF_OpDefinitionBuilderAddInput(definition, grouped ? "tensors: T" : "tensor: T");
    Tf().TF_OpDefinitionBuilderAddOutput(definition, grouped ? "results: T" : "result: T");
    Tf().TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, kind == HVD_ALLTOALL        ? RowsAndSplits
                                                                     : kind == HVD_ALLGATHER     ? OtherRows
                                                                     : kind == HVD_REDUCESCATTER ? OtherRows
                                                                                                 : SameShapes);
  }
  if (kind == HVD_ALLTOALL) {
    Tf().TF_OpDefinitionBuilderAddInput(definition, "splits: int32");
    Tf().TF_OpDefinitionBuilderAddOutput(definition, "received_splits: int32");
  }
  Register(definition, Tf().TF_NewAsyncKernelBuilder(type, "CPU", Create<kind, grouped>, Run, Delete), type);
}

// Operations that return the rank, size and so on when a graph runs.

struct Answer {
  int32_t value = 0;
  int code = kOk;
  const char* error = "";
};

Answer Ask(Question question, int32_t process_set) {
  const hvd::tensorflow::Place place = Topology::Current().place();
  if (!place.initialized) {
    return {0, kFailedPrecondition, "Horovod has not been initialized; call hvd.init() first"};
  }
  if (question == kRank) return {place.rank};
  if (question == kLocalRank) return {place.local_rank};
  if (question == kLocalSize) return {place.local_size};
  KnownSet set;
  if (!Topology::Current().Find(process_set, &set)) {
    return {0, kInvalidArgument, "there is no process set with this id: it was removed, or never registered"};
  }
  return {question == kSize ? set.size : set.included};
}

void* CreateQuestion(TF_OpKernelConstruction* construction) {
  const Status status;
  int64_t process_set = 0;
  Tf().TF_OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &process_set, status.get());
  return new int32_t(static_cast<int32_t>(process_set));
}

template <Question question>
void RunQuestion(void* kernel, TF_OpKernelContext* context) {
  const Answer answer = Ask(question, *static_cast<int32_t*>(kernel));
  const Status status(answer.code, answer.error);
  if (status.ok()) {
    TF_Tensor* result = Tf().TF_AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof(int32_t), status.get());
    if (status.ok()) {
      *static_cast<int32_t*>(Tf().TF_TensorData(result)) = answer.value;
      Tf().TF_DeleteTensor(result);
    }
  }
  if (!status.ok()) Tf().TF_OpKernelContext_Failure(context, status.get());
}

void DeleteQuestion(void* kernel) { delete static_cast<int32_t*>(kernel); }

template <Question question>
void RegisterQuestion(const char* type) {
  TF_OpDefinitionBuilder* definition = Tf().TF_NewOpDefinitionBuilder(type);
  Tf().TF_OpDefinitionBuilderAddAttr(definition, "process_set_id: int = 0");
  Tf().TF_OpDefinitionBuilderAddOutput(definition, "answer: int32");
  Tf().TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, Scalar);
  Register(definition, Tf().TF_NewKernelBuilder(type, "CPU", CreateQuestion, RunQuestion<question>, DeleteQuestion),
           type);
}

// Register at load time, because tf.load_op_library creates Python functions for the operations that are registered
// while it loads a library.
__attribute__((constructor)) void RegisterAll() {
  if (Tf().missing) return;
  RegisterCollective<HVD_ALLREDUCE, false>();
  RegisterCollective<HVD_ALLREDUCE, true>();
  RegisterCollective<HVD_ALLGATHER, false>();
  RegisterCollective<HVD_ALLGATHER, true>();
  RegisterCollective<HVD_BROADCAST, false>();
  RegisterCollective<HVD_BROADCAST, true>();
  RegisterCollective<HVD_ALLTOALL, false>();
  RegisterCollective<HVD_REDUCESCATTER, false>();
  RegisterCollective<HVD_REDUCESCATTER, true>();
  RegisterCollective<HVD_JOIN, false>();
  RegisterQuestion<kSize>("HorovodSize");
  RegisterQuestion<kRank>("HorovodRank");
  RegisterQuestion<kLocalSize>("HorovodLocalSize");
  RegisterQuestion<kLocalRank>("HorovodLocalRank");
  RegisterQuestion<kProcessSetIncluded>("HorovodProcessSetIncluded");
}

}  // namespace
}  // namespace hvd::tensorflow
