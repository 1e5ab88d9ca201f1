// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla/instances.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace hvd::xla {
namespace {

// State that XLA keeps for each call site. Its C structs changed with the minor version, but the entries of the
// function table kept their positions. The structs below differ from those in the vendored header. Those of version 0.3
// are unchanged up to 0.5 (JAX 0.12). A newer XLA may have larger structs and refuse these; call sites are then not
// distinguished.

struct TypeInfo {  // since 0.2
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  void (*deleter)(void*);
};
struct TypeRegister {  // since 0.2: type_info at the end, which 0.1 does not read
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ByteSpan name;
  XLA_FFI_TypeId* type_id;
  const TypeInfo* type_info;
};
struct State {  // since 0.3: arguments of set and get, with a stage
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_TypeId* type_id;
  void* state;
};

void Keep(void*) {}  // leaks the instances, which are few, because executables are rarely destroyed

struct Registry {
  std::mutex mutex;
  std::map<const XLA_FFI_Api*, XLA_FFI_TypeId> type_ids;  // one per XLA, because JAX and TensorFlow have one each
  std::map<int64_t, Program*> programs;
  std::map<std::pair<int64_t, std::string>, int> numbers;
};
Registry& All() {
  static Registry* registry = new Registry;
  return *registry;
}

XLA_FFI_TypeId* TypeIdOf(const XLA_FFI_Api* api) {
  std::lock_guard<std::mutex> lock(All().mutex);
  return &All().type_ids[api];
}

bool RegisterType(const XLA_FFI_Api* api, XLA_FFI_TypeId* type_id) {
  if (type_id->type_id != 0) return true;
  static const TypeInfo info{sizeof(TypeInfo), nullptr, Keep};
  static constexpr std::string_view kName = "hvd_instance";
  TypeRegister args{sizeof args, nullptr, {kName.data(), kName.size()}, type_id, &info};
  if (api->api_version.minor_version < 2) args.struct_size = sizeof(XLA_FFI_TypeId_Register_Args);
  return !Discard(api, api->XLA_FFI_TypeId_Register(reinterpret_cast<XLA_FFI_TypeId_Register_Args*>(&args)));
}

bool SetState(const Frame& frame, XLA_FFI_TypeId* type_id, Instance* instance) {
  const XLA_FFI_Api* api = frame.api();
  if (api->api_version.minor_version >= 3) {
    State args{sizeof args, nullptr, frame.context(), XLA_FFI_ExecutionStage_INSTANTIATE, type_id, instance};
    return !Discard(api, api->XLA_FFI_State_Set(reinterpret_cast<XLA_FFI_State_Set_Args*>(&args)));
  }
  XLA_FFI_State_Set_Args args{sizeof args, nullptr, frame.context(), type_id, instance, Keep};
  if (api->api_version.minor_version == 2) args.struct_size = offsetof(XLA_FFI_State_Set_Args, deleter);
  return !Discard(api, api->XLA_FFI_State_Set(&args));
}

}  // namespace

XLA_FFI_Error* Instantiate(const Frame& frame) {
  Registry& all = All();
  const int64_t program_id = frame.Integer("program");
  const std::string name(frame.Text("name"));
  std::lock_guard<std::mutex> lock(all.mutex);
  Program*& program = all.programs[program_id];
  if (!program) program = new Program;
  int number = all.numbers[{program_id, name}]++;
  const bool compiled_once = program_id >= 0;
  if (number == 0 || compiled_once) program->instances.fetch_add(1);
  // Use number 0: XLA does not tell whether this is another copy or a recompilation, which other ranks may not have
  // done.
  if (!compiled_once) number = 0;
  XLA_FFI_TypeId* type_id = &all.type_ids[frame.api()];
  if (RegisterType(frame.api(), type_id)) {
    auto* instance = new Instance{program, number};
    if (SetState(frame, type_id, instance)) return nullptr;
    delete instance;
  }
  if (number == 0) return nullptr;
  return frame.Error(XLA_FFI_Error_Code_UNIMPLEMENTED,
                     "Horovod: the collective '" + name +
                         "' appears more than once in one compiled program (a jitted function that is called twice, or "
                         "jax.checkpoint), and this version of XLA cannot tell the copies apart. Mark the inner "
                         "function with jax.jit(..., inline=True), or take the collective out of it.");
}

const Instance* InstanceOf(const Frame& frame) {
  const XLA_FFI_Api* api = frame.api();
  XLA_FFI_TypeId* type_id = TypeIdOf(api);
  if (type_id->type_id == 0) return nullptr;
  if (api->api_version.minor_version >= 3) {
    State args{sizeof args, nullptr, frame.context(), XLA_FFI_ExecutionStage_INSTANTIATE, type_id, nullptr};
    if (Discard(api, api->XLA_FFI_State_Get(reinterpret_cast<XLA_FFI_State_Get_Args*>(&args)))) return nullptr;
    return static_cast<const Instance*>(args.state);
  }
  XLA_FFI_State_Get_Args args{sizeof args, nullptr, frame.context(), type_id, nullptr};
  if (Discard(api, api->XLA_FFI_State_Get(&args))) return nullptr;
  return static_cast<const Instance*>(args.state);
}

}  // namespace hvd::xla
