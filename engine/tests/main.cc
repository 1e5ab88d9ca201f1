// SPDX-License-Identifier: Apache-2.0
// The entry point of the engine's unit tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
