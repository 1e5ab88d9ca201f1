// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/settings.h"

#include <nanobind/stl/string.h>

#include <string>

#include "bindings/python/table.h"

namespace nb = nanobind;

namespace hvd_python {
namespace {

// Return false if the field cannot hold the value.
template <typename Number>
bool Store(nb::handle value, Number* field) {
  int64_t number = 0;
  if (!nb::try_cast(value, number)) return false;
  *field = static_cast<Number>(number);
  return static_cast<int64_t>(*field) == number && (number < 0) == (*field < Number{0});
}

bool Store(nb::handle value, const char** field) {
  if (!nb::isinstance<nb::bytes>(value)) return false;
  *field = nb::cast<nb::bytes>(value).c_str();
  return true;
}

nb::object Shown(int64_t number) { return nb::int_(number); }
nb::object Shown(const char* text) { return nb::bytes(text); }

struct Field {
  const char* name;
  bool (*store)(hvd_settings&, nb::handle);
  nb::object (*show)(const hvd_settings&);
};

#define HVD_FIELD(type, name, value)                                             \
  {#name, [](hvd_settings& all, nb::handle it) { return Store(it, &all.name); }, \
   [](const hvd_settings& all) { return Shown(all.name); }},
const Field kFields[] = {HVD_SETTINGS(HVD_FIELD)};
#undef HVD_FIELD

const Field* Find(const std::string& name) {
  for (const Field& field : kFields) {
    if (name == field.name) return &field;
  }
  return nullptr;
}

nb::dict DefaultSettings() {
  hvd_settings defaults;
  Api()->default_settings(&defaults);
  nb::dict result;
  for (const Field& field : kFields) result[field.name] = field.show(defaults);
  return result;
}

}  // namespace

void BindSettings(nb::module_& module) { module.def("default_settings", &DefaultSettings); }

hvd_settings ReadSettings(const nb::dict& given) {
  hvd_settings settings;
  Api()->default_settings(&settings);
  for (auto [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    const Field* field = Find(name);
    if (!field) throw nb::key_error(("the engine has no setting named " + name).c_str());
    if (!field->store(settings, value)) {
      throw nb::value_error(("the engine's " + name + " cannot hold this number").c_str());
    }
  }
  return settings;
}

}  // namespace hvd_python
