// All tests of kernels in one program, so that the kernels are compiled once.
#include "attention.hpp"

int main(int argc, char** argv) { return test::run_tests(argc, argv); }
