// The NVRTC double: what it takes for source.
#include "self_test.hpp"
#include <cstring>
#include <string>

extern "C" {
int nvrtcCreateProgram(void**, const char*, const char*, int, const char* const*, const char* const*);
int nvrtcCompileProgram(void*, int, const char* const*);
int nvrtcDestroyProgram(void**);
int nvrtcGetCUBINSize(void*, size_t*);
int nvrtcGetCUBIN(void*, char*);
int nvrtcGetProgramLogSize(void*, size_t*);
int nvrtcGetProgramLog(void*, char*);
}

namespace {

constexpr int SUCCESS = 0, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6;

// The first source that the kernels were built from: it includes nothing that matters here.
const std::string SOURCES[] = {
#include "kernel_sources.inc"
};

const std::string& source_without_includes() {
    for (const std::string& source : SOURCES)
        if (source.find("#include") == std::string::npos) return source;
    fprintf(stderr, "every source includes another\n");
    exit(1);
}

// Compiles, and says in `image` or `log` what came of it.
int compile(const std::string& text, const char* header, std::vector<const char*> options,
            std::string& result) {
    const char* name = "header.cuh";
    void* program;
    CHECK(nvrtcCreateProgram(&program, text.c_str(), "main.cu", header ? 1 : 0, &header, &name) == SUCCESS);
    const int code = nvrtcCompileProgram(program, int(options.size()), options.data());
    size_t n_bytes = 0;
    CHECK(nvrtcGetCUBINSize(program, &n_bytes) == (code == SUCCESS ? SUCCESS : INVALID_PROGRAM));
    if (code != SUCCESS) CHECK(nvrtcGetProgramLogSize(program, &n_bytes) == SUCCESS);
    std::vector<char> bytes(n_bytes);
    CHECK((code == SUCCESS ? nvrtcGetCUBIN : nvrtcGetProgramLog)(program, bytes.data()) == SUCCESS);
    result = bytes.data();
    CHECK(nvrtcDestroyProgram(&program) == SUCCESS && !program);
    return code;
}

}  // namespace

int sources_are_known() {
    begin();
    const std::string known = source_without_includes();
    const std::vector<const char*> options = {"--gpu-architecture=sm_90", "--std=c++17", "--fmad=false"};
    std::string result;
    CHECK(compile(known, nullptr, options, result) == SUCCESS);
    CUmodule module;
    CHECK(cuModuleLoadData(&module, result.c_str()) == CUDA_SUCCESS);
    CHECK(cuModuleLoadData(&module, "\177ELF") == CUDA_ERROR_INVALID_IMAGE);
    // One byte more, in the text or in a header.
    CHECK(compile(known + " ", nullptr, options, result) == COMPILATION &&
          result.find("not the text") != std::string::npos);
    CHECK(compile(known, (known + " ").c_str(), options, result) == COMPILATION);
    // A header that does not come along.
    CHECK(compile("#include \"header.cuh\"\n", known.c_str(), options, result) == SUCCESS);
    CHECK(compile("#include \"other.cuh\"\n", known.c_str(), options, result) == COMPILATION &&
          result.find("cannot open") != std::string::npos);
    CHECK(compile("#include <cuda_bf16.h>\n", known.c_str(), options, result) == COMPILATION);
    CHECK(compile(known, nullptr, {"--gpu-architecture=compute_90", "--fmad=false"}, result) ==
          INVALID_OPTION);
    CHECK(compile(known, nullptr, {"--gpu-architecture=sm_90"}, result) == INVALID_OPTION);
    CHECK(compile(known, nullptr, {"--gpu-architecture=sm_90", "--fmad=false", "--no-such-option"}, result) ==
          INVALID_OPTION);
    CHECK(compile(known, nullptr, {"--gpu-architecture=sm_80", "--fmad=false"}, result) == SUCCESS);
    CHECK(cuModuleLoadData(&module, result.c_str()) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    return 0;
}
