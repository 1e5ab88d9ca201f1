# SPDX-License-Identifier: Apache-2.0
# hvd_merge_tests(LIST): replace the tests' files in a list by a few files that include them, which together compile in less
# than half of the time. Each test's file gets a namespace of its own, so that files may use a name twice.
set(HVD_TESTS_IN_ONE 8)

function(hvd_merge_tests list)
  set(merged)
  set(rest ${${list}})
  # The include directives are read here, so read them again when a test has changed.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${rest})
  while(rest)
    list(SUBLIST rest 0 ${HVD_TESTS_IN_ONE} files)
    list(REMOVE_ITEM rest ${files})
    list(GET files 0 first)
    get_filename_component(name ${first} NAME_WE)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/merged/${name}_and_more.cc)
    hvd_merge_files(${output} ${files})
    list(APPEND merged ${output})
  endwhile()
  set(${list} ${merged} PARENT_SCOPE)
endfunction()

# Write a file that includes others. Their headers come first, outside of the namespaces.
function(hvd_merge_files output)
  set(includes)
  set(bodies "")
  foreach(file IN LISTS ARGN)
    file(STRINGS ${file} found REGEX "^#include (<.*>|\".*[.]h\")")
    list(APPEND includes ${found})
    get_filename_component(name ${file} NAME_WE)
    # Inside of this namespace, a test's `namespace hvd` is one of its own, too, and has to know the engine's.
    string(APPEND bodies "namespace in_${name} {
namespace hvd {
using namespace ::hvd;
namespace testing {
using namespace ::hvd::testing;
}
}
#include \"${file}\"
}
")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" includes)
  file(CONFIGURE OUTPUT ${output} CONTENT "${includes}\nnamespace hvd::testing {}\n${bodies}" @ONLY)
endfunction()
