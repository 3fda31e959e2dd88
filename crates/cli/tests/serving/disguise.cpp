// A backend library for tests: the processor under another name, as a GPU.
//
// Built by `devices.rs` beside it, against the headers of the llama.cpp in the binary, and loaded by that binary. All of ggml
// comes from the program that loads it. With DISGUISE_CRASH it dies when it is asked for its devices, as a broken driver does.
#include "ggml-backend-impl.h"
#include "ggml-backend.h"

#include <cstdlib>

static const char * device_name(ggml_backend_dev_t) { return "TEST0"; }
static const char * device_description(ggml_backend_dev_t) { return "a disguise"; }
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

static const char * reg_name(ggml_backend_reg_t) { return "TEST"; }

static size_t reg_count(ggml_backend_reg_t) {
#ifdef DISGUISE_CRASH
    std::abort();
#endif
    return 1;
}

static ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t) {
    static ggml_backend_device device = [reg] {
        ggml_backend_device made = *ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        made.iface.get_name = device_name;
        made.iface.get_description = device_description;
        made.iface.get_type = device_type;
        made.reg = reg;
        return made;
    }();
    return &device;
}

static void * reg_address(ggml_backend_reg_t, const char *) { return nullptr; }

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    static ggml_backend_reg reg = {
        GGML_BACKEND_API_VERSION,
        { reg_name, reg_count, reg_device, reg_address },
        nullptr,
    };
    return &reg;
}
