// All tests of kernels, and of the shim that runs them, in one program: the kernels are compiled once.
#include "attention.hpp"
#include "elementwise.hpp"
#include "model_ends.hpp"
#include "norms.hpp"
#include "optimizer.hpp"
#include "../shim/tests.hpp"

int main(int argc, char** argv) { return test::run_tests(argc, argv); }
