// cuInit, devices, contexts, errors.
#include "driver.hpp"
#include "fault_report.hpp"
#include "memory.hpp"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

namespace cuda_double::driver {
namespace {

std::atomic<bool> initialized{false};
thread_local int thread_device = -1;

// The integers up to the first word that is none, or no device: what the real driver makes of
// CUDA_VISIBLE_DEVICES.
std::vector<int> visible_devices() {
    const int n_there = std::min<long long>(number_setting("CUDA_DOUBLE_DEVICES", 1), MAX_DEVICES);
    std::vector<int> devices;
    const char* text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (int i = 0; i < n_there; i++) devices.push_back(i);
        return devices;
    }
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        char* end = nullptr;
        const long number = strtol(word.c_str(), &end, 10);
        if (word.empty() || *end != '\0' || number < 0 || number >= n_there) break;
        devices.push_back(int(number));
    }
    return devices;
}

const std::vector<int>& devices() {
    static const std::vector<int> devices = visible_devices();
    return devices;
}

// A context is its device: each device has its primary one and no other. The handle is the ordinal plus one.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(intptr_t(device) + 1); }

struct ErrorText {
    const char* name;
    const char* text;
};

const std::map<CUresult, ErrorText>& error_texts() {
    static const std::map<CUresult, ErrorText> texts = {
        {CUDA_SUCCESS, {"CUDA_SUCCESS", "no error"}},
        {CUDA_ERROR_INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
        {CUDA_ERROR_OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
        {CUDA_ERROR_NOT_INITIALIZED, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
        {CUDA_ERROR_NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
        {CUDA_ERROR_INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
        {CUDA_ERROR_INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
        {CUDA_ERROR_INVALID_CONTEXT, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
        {CUDA_ERROR_NO_BINARY_FOR_GPU,
         {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
        {CUDA_ERROR_INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
        {CUDA_ERROR_NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
        {CUDA_ERROR_NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
        {CUDA_ERROR_ILLEGAL_ADDRESS,
         {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
        {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
         {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
        {CUDA_ERROR_LAUNCH_FAILED, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
        {CUDA_ERROR_NOT_SUPPORTED, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
        {CUDA_ERROR_UNKNOWN, {"CUDA_ERROR_UNKNOWN", "unknown error"}},
    };
    return texts;
}

// Device attributes by their number in cuda.h. Those of an H100 where a program may plan by them.
const std::map<int, int>& attributes() {
    static const std::map<int, int> attributes = {
        {1, 1024},                                                  // MAX_THREADS_PER_BLOCK
        {2, 1024}, {3, 1024}, {4, 64},                              // MAX_BLOCK_DIM_X, Y, Z
        {5, 2147483647}, {6, 65535}, {7, 65535},                    // MAX_GRID_DIM_X, Y, Z
        {8, 49152},                                                 // MAX_SHARED_MEMORY_PER_BLOCK
        {9, 65536},                                                 // TOTAL_CONSTANT_MEMORY
        {10, 32},                                                   // WARP_SIZE
        {12, 65536},                                                // MAX_REGISTERS_PER_BLOCK
        {13, 1980000},                                              // CLOCK_RATE, kHz
        {16, int(number_setting("CUDA_DOUBLE_SM_COUNT", 132))},     // MULTIPROCESSOR_COUNT
        {18, 0},                                                    // INTEGRATED
        {19, 1},                                                    // CAN_MAP_HOST_MEMORY
        {20, 0},                                                    // COMPUTE_MODE
        {31, 1},                                                    // CONCURRENT_KERNELS
        {32, 1},                                                    // ECC_ENABLED
        {36, 2619000},                                              // MEMORY_CLOCK_RATE, kHz
        {37, 5120},                                                 // GLOBAL_MEMORY_BUS_WIDTH, bits
        {38, 52428800},                                             // L2_CACHE_SIZE
        {39, 2048},                                                 // MAX_THREADS_PER_MULTIPROCESSOR
        {40, 3},                                                    // ASYNC_ENGINE_COUNT
        {41, 1},                                                    // UNIFIED_ADDRESSING
        {50, 0},                                                    // PCI_DOMAIN_ID
        {34, 0},                                                    // PCI_DEVICE_ID
        {75, compute_capability() / 10},                            // COMPUTE_CAPABILITY_MAJOR
        {76, compute_capability() % 10},                            // COMPUTE_CAPABILITY_MINOR
        {81, 233472},                                               // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        {82, 65536},                                                // MAX_REGISTERS_PER_MULTIPROCESSOR
        {95, 1},                                                    // COOPERATIVE_LAUNCH
        {97, int(max_shared_bytes())},                              // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        {106, 32},                                                  // MAX_BLOCKS_PER_MULTIPROCESSOR
        {111, 1024},                                                // RESERVED_SHARED_MEMORY_PER_BLOCK
        {115, 1},                                                   // MEMORY_POOLS_SUPPORTED
    };
    return attributes;
}

}  // namespace

int n_devices() { return int(devices().size()); }

int physical_device(int ordinal) { return devices().at(ordinal); }

std::string bus_id(int ordinal) {
    char text[16];
    snprintf(text, sizeof text, "0000:%02x:00.0", physical_device(ordinal) + 1);
    return text;
}

int compute_capability() {
    static const int capability = int(number_setting("CUDA_DOUBLE_COMPUTE", 90));
    return capability;
}

// By CUDA's table of compute capabilities.
size_t max_shared_bytes() {
    const int c = compute_capability();
    const int kib = c == 86 || c == 89 || c / 10 == 12 ? 99 : c == 80 || c == 87 ? 163 : 227;
    static const auto bytes = size_t(number_setting("CUDA_DOUBLE_SHARED_MEMORY", kib << 10));
    return bytes;
}

bool is_initialized() { return initialized; }

int current_device() { return thread_device; }

}  // namespace cuda_double::driver

using namespace cuda_double;
using namespace cuda_double::driver;

namespace {

CUresult check_device(CUdevice device) {
    if (!is_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && device < n_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

CUDA_DOUBLE_API CUresult cuInit(unsigned flags) {
    CUDA_DOUBLE_ENTER(cuInit);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (n_devices() == 0) return CUDA_ERROR_NO_DEVICE;
    if (!initialized.exchange(true)) install_fault_report();
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDriverGetVersion(int* version) {
    CUDA_DOUBLE_ENTER(cuDriverGetVersion);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = int(number_setting("CUDA_DOUBLE_DRIVER_VERSION", 13000));
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDeviceGetCount(int* count) {
    CUDA_DOUBLE_ENTER(cuDeviceGetCount);
    if (!is_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *count = n_devices();
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    CUDA_DOUBLE_ENTER(cuDeviceGet);
    *device = ordinal;
    return check_device(ordinal);
}

CUDA_DOUBLE_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDeviceGetName);
    if (const CUresult code = check_device(device)) return code;
    snprintf(name, length, "CPU double of an sm_%d GPU (no GPU here)", compute_capability());
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDeviceGetUuid_v2(void* uuid, CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDeviceGetUuid_v2);
    if (const CUresult code = check_device(device)) return code;
    char text[17];
    snprintf(text, sizeof text, "cuda-double-%04x", physical_device(device));
    memcpy(uuid, text, 16);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDeviceGetPCIBusId);
    if (const CUresult code = check_device(device)) return code;
    snprintf(text, length, "%s", bus_id(device).c_str());
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDeviceTotalMem_v2(size_t* n_bytes, CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDeviceTotalMem_v2);
    if (const CUresult code = check_device(device)) return code;
    *n_bytes = memory::capacity_bytes();
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDeviceGetAttribute);
    if (const CUresult code = check_device(device)) return code;
    constexpr int PCI_BUS_ID = 33;
    if (attribute == PCI_BUS_ID) {
        *value = physical_device(device) + 1;
        return CUDA_SUCCESS;
    }
    const auto found = attributes().find(attribute);
    if (found == attributes().end()) {
        complain("cuDeviceGetAttribute: attribute %d is not in this double; add it to driver_device.cpp",
                 attribute);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = found->second;
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDevicePrimaryCtxRetain);
    if (const CUresult code = check_device(device)) return code;
    *context = context_of(device);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUDA_DOUBLE_ENTER(cuDevicePrimaryCtxRelease_v2);
    return check_device(device);
}

CUDA_DOUBLE_API CUresult cuCtxSetCurrent(CUcontext context) {
    CUDA_DOUBLE_ENTER(cuCtxSetCurrent);
    if (!is_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    const intptr_t device = reinterpret_cast<intptr_t>(context) - 1;
    if (device < -1 || device >= n_devices()) return CUDA_ERROR_INVALID_CONTEXT;
    thread_device = int(device);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuCtxGetCurrent(CUcontext* context) {
    CUDA_DOUBLE_ENTER(cuCtxGetCurrent);
    if (!is_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
    *context = context_of(thread_device);
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuCtxGetDevice(CUdevice* device) {
    CUDA_DOUBLE_ENTER(cuCtxGetDevice);
    if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current_device();
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuCtxSynchronize() {
    CUDA_DOUBLE_ENTER(cuCtxSynchronize);
    if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return executor::finish_everything(current_device());
}

CUDA_DOUBLE_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    CUDA_DOUBLE_ENTER(cuCtxGetStreamPriorityRange);
    if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUDA_DOUBLE_API CUresult cuGetErrorName(CUresult code, const char** name) {
    const auto found = error_texts().find(code);
    *name = found == error_texts().end() ? nullptr : found->second.name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_DOUBLE_API CUresult cuGetErrorString(CUresult code, const char** text) {
    const auto found = error_texts().find(code);
    *text = found == error_texts().end() ? nullptr : found->second.text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Tables of functions that are not documented; NVIDIA's own libraries ask for them, and go on without.
CUDA_DOUBLE_API CUresult cuGetExportTable(const void**, const void*) { return CUDA_ERROR_NOT_FOUND; }
