// All tests of kernels, and of the shim that runs them, in one program: the kernels are compiled once.
//   PROGRAM [NAME ...]   see harness.hpp
//   PROGRAM --kernels    the names of all kernels, one a line
#include "attention.hpp"
#include "elementwise.hpp"
#include "invariance.hpp"
#include "model_ends.hpp"
#include "norms.hpp"
#include "optimizer.hpp"
#include "../shim/tests.hpp"

int main(int argc, char** argv) {
    if (argc == 2 && std::strcmp(argv[1], "--kernels") == 0) {
        for (const shim::Kernel& kernel : shim::registry()) std::printf("%s\n", kernel.name);
        return 0;
    }
    return test::run_tests(argc, argv);
}
