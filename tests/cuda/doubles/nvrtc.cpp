// CPU double of libnvrtc: it compiles nothing. It sees that what it is given is, to the byte, what the driver
// double's kernels were built from, that every included file comes along, and hands out an image only that
// double knows.
#include "common.hpp"
#include "kernels.hpp"
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <vector>

using namespace cuda_double;

namespace {

enum nvrtcResult : int {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
};

struct Program {
    std::string name, text;
    std::map<std::string, std::string> headers;
    std::string log, image;
};

struct Programs {
    std::mutex mutex;
    std::set<Program*> live;
};

Programs& programs() {
    static Programs* const programs = new Programs;
    return *programs;
}

Program* find(void* handle) {
    Programs& p = programs();
    const std::lock_guard<std::mutex> lock(p.mutex);
    auto* program = static_cast<Program*>(handle);
    return p.live.count(program) ? program : nullptr;
}

// A line is an inclusion, a comment, or empty.
bool only_includes(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (!line.empty() && line.rfind("#include \"", 0) != 0 && line.rfind("//", 0) != 0) return false;
    return true;
}

// Adds to the log what a compiler without the file system would not find.
void check_includes(const Program& program, const std::string& file, const std::string& text,
                    std::string& log) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("#include ", 0) != 0) continue;
        const std::string what = line.substr(9);
        const size_t end = what.find('"', 1);
        const bool known =
            what[0] == '"' && end != std::string::npos && program.headers.count(what.substr(1, end - 1));
        if (!known)
            log += file + ": cannot open " + what + ": it is not among the headers of nvrtcCreateProgram\n";
    }
}

// "sm_90" of --gpu-architecture=sm_90 or -arch=sm_90; empty where there is none.
std::string architecture(const std::vector<std::string>& options) {
    for (const std::string& option : options)
        for (const char* head : {"--gpu-architecture=", "-arch="})
            if (option.rfind(head, 0) == 0) return option.substr(strlen(head));
    return "";
}

bool is_known_option(const std::string& option) {
    for (const char* head : {"--gpu-architecture=", "-arch=", "--std=", "-std=", "--fmad=", "-D",
                             "--define-macro=", "-default-device", "--device-int128", "-lineinfo",
                             "--generate-line-info", "--restrict", "--extra-device-vectorization"})
        if (option.rfind(head, 0) == 0) return true;
    return false;
}

int give(const std::string& text, char* to) {
    memcpy(to, text.c_str(), text.size() + 1);
    return NVRTC_SUCCESS;
}

}  // namespace

CUDA_DOUBLE_API int nvrtcVersion(int* major, int* minor) {
    CUDA_DOUBLE_ENTER(nvrtcVersion);
    const int version = int(number_setting("CUDA_DOUBLE_NVRTC_VERSION", 13000));
    *major = version / 1000;
    *minor = version % 1000 / 10;
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcGetNumSupportedArchs(int* n) {
    CUDA_DOUBLE_ENTER(nvrtcGetNumSupportedArchs);
    *n = 6;
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcGetSupportedArchs(int* architectures) {
    CUDA_DOUBLE_ENTER(nvrtcGetSupportedArchs);
    const int known[] = {80, 86, 89, 90, 100, 120};
    memcpy(architectures, known, sizeof known);
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcCreateProgram(void** handle, const char* text, const char* name, int n_headers,
                                       const char* const* headers, const char* const* include_names) {
    CUDA_DOUBLE_ENTER(nvrtcCreateProgram);
    if (!handle || !text || n_headers < 0) return NVRTC_ERROR_INVALID_INPUT;
    auto* program = new Program;
    program->name = name ? name : "default_program";
    program->text = text;
    for (int i = 0; i < n_headers; i++) program->headers[include_names[i]] = headers[i];
    Programs& p = programs();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.live.insert(program);
    *handle = program;
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcDestroyProgram(void** handle) {
    CUDA_DOUBLE_ENTER(nvrtcDestroyProgram);
    Programs& p = programs();
    const std::lock_guard<std::mutex> lock(p.mutex);
    auto* program = static_cast<Program*>(*handle);
    if (p.live.erase(program) == 0) return NVRTC_ERROR_INVALID_PROGRAM;
    delete program;
    *handle = nullptr;
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcCompileProgram(void* handle, int n_options, const char* const* options) {
    CUDA_DOUBLE_ENTER(nvrtcCompileProgram);
    Program* program = find(handle);
    if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
    const std::vector<std::string> words(options, options + n_options);
    program->log.clear();
    program->image.clear();
    for (const std::string& word : words)
        if (!is_known_option(word)) program->log += "unrecognized option " + word + " (to this double)\n";
    const std::string wanted = architecture(words);
    const std::set<std::string> supported = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"};
    if (!supported.count(wanted)) program->log += "invalid value for --gpu-architecture: '" + wanted + "'\n";
    // The double's kernels are: one fma where the source says fmaf, and no other.
    if (std::find(words.begin(), words.end(), "--fmad=false") == words.end())
        program->log += "the kernels are written for --fmad=false\n";
    if (!program->log.empty()) {
        complain("nvrtcCompileProgram: %s", program->log.c_str());
        return NVRTC_ERROR_INVALID_OPTION;
    }
    if (!only_includes(program->text) && !is_kernel_source(program->text))
        program->log += program->name +
                        ": not the text that the double's kernels were built from; build the doubles anew\n";
    check_includes(*program, program->name, program->text, program->log);
    for (const auto& [name, text] : program->headers) {
        if (!is_kernel_source(text))
            program->log +=
                name + ": not the text that the double's kernels were built from; build the doubles anew\n";
        check_includes(*program, name, text, program->log);
    }
    if (!program->log.empty()) {
        complain("nvrtcCompileProgram: %s", program->log.c_str());
        return NVRTC_ERROR_COMPILATION;
    }
    program->image = IMAGE_HEADER + wanted;
    return NVRTC_SUCCESS;
}

// Sizes count the zero at the end.
CUDA_DOUBLE_API int nvrtcGetCUBINSize(void* handle, size_t* n_bytes) {
    CUDA_DOUBLE_ENTER(nvrtcGetCUBINSize);
    const Program* program = find(handle);
    if (!program || program->image.empty()) return NVRTC_ERROR_INVALID_PROGRAM;
    *n_bytes = program->image.size() + 1;
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcGetCUBIN(void* handle, char* image) {
    CUDA_DOUBLE_ENTER(nvrtcGetCUBIN);
    const Program* program = find(handle);
    return program && !program->image.empty() ? give(program->image, image)
                                              : int(NVRTC_ERROR_INVALID_PROGRAM);
}

CUDA_DOUBLE_API int nvrtcGetPTXSize(void* handle, size_t* n_bytes) {
    CUDA_DOUBLE_ENTER(nvrtcGetPTXSize);
    return nvrtcGetCUBINSize(handle, n_bytes);
}

CUDA_DOUBLE_API int nvrtcGetPTX(void* handle, char* image) {
    CUDA_DOUBLE_ENTER(nvrtcGetPTX);
    return nvrtcGetCUBIN(handle, image);
}

CUDA_DOUBLE_API int nvrtcGetProgramLogSize(void* handle, size_t* n_bytes) {
    CUDA_DOUBLE_ENTER(nvrtcGetProgramLogSize);
    const Program* program = find(handle);
    if (!program) return NVRTC_ERROR_INVALID_PROGRAM;
    *n_bytes = program->log.size() + 1;
    return NVRTC_SUCCESS;
}

CUDA_DOUBLE_API int nvrtcGetProgramLog(void* handle, char* log) {
    CUDA_DOUBLE_ENTER(nvrtcGetProgramLog);
    const Program* program = find(handle);
    return program ? give(program->log, log) : int(NVRTC_ERROR_INVALID_PROGRAM);
}

CUDA_DOUBLE_API const char* nvrtcGetErrorString(int code) {
    switch (code) {
    case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR unknown";
    }
}
