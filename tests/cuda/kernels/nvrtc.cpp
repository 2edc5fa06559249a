// Compiles kernels as the program does on a node: with the real NVRTC, from texts, for one architecture.
// Needs no GPU.
//   nvrtc DIRECTORY MAIN BINARY OPTION ...   MAIN and all files it may include lie in DIRECTORY; writes
//   BINARY
#include <nvrtc.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

static void check(nvrtcResult result, const char* call) {
    if (result == NVRTC_SUCCESS) return;
    std::fprintf(stderr, "%s: %s\n", call, nvrtcGetErrorString(result));
    std::exit(1);
}

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    std::vector<std::string> names, texts;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
        if (entry.path().filename() == argv[2]) continue;
        names.push_back(entry.path().filename());
        texts.push_back(read(entry.path()));
    }
    std::vector<const char*> name_pointers, text_pointers;
    for (const auto& name : names) name_pointers.push_back(name.c_str());
    for (const auto& text : texts) text_pointers.push_back(text.c_str());
    const std::string source = read(std::filesystem::path(argv[1]) / argv[2]);
    nvrtcProgram program;
    check(nvrtcCreateProgram(&program, source.c_str(), argv[2], int(names.size()), text_pointers.data(),
                             name_pointers.data()),
          "nvrtcCreateProgram");
    const nvrtcResult compiled = nvrtcCompileProgram(program, argc - 4, argv + 4);
    size_t bytes = 0;
    check(nvrtcGetProgramLogSize(program, &bytes), "nvrtcGetProgramLogSize");
    std::string log(bytes, 0);
    check(nvrtcGetProgramLog(program, log.data()), "nvrtcGetProgramLog");
    std::fputs(log.c_str(), stderr);
    check(compiled, "nvrtcCompileProgram");
    check(nvrtcGetCUBINSize(program, &bytes), "nvrtcGetCUBINSize");
    std::string binary(bytes, 0);
    check(nvrtcGetCUBIN(program, binary.data()), "nvrtcGetCUBIN");
    std::ofstream(argv[3], std::ios::binary) << binary;
}
