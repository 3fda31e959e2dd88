// The memory that a context takes, by the memory that it lies in.
//
// llama.cpp measures a model and a context that were made without allocating (`no_alloc`). The breakdown is a C++ map that
// is not part of its public headers; it is written into plain rows here. `measure.rs` is the only caller. No exception may
// leave this file.

#include "llama-ext.h"

#include "ggml-backend.h"
#include "llama.h"

#include <cstdint>
#include <exception>

extern "C" {

// Bytes in one memory: a device of the model, or the host.
struct poncho_use {
    uint64_t weights;
    uint64_t context;
    uint64_t compute;
};

// Writes one row for each device, in the model's order, and the host's row after them. Returns the number of devices, or -1
// if there are more rows than `count`, or on any failure.
int32_t poncho_memory_of(const llama_context * context, poncho_use * rows, int32_t count) {
    try {
        const llama_model * model   = llama_get_model(context);
        const int32_t       devices = llama_model_n_devices(model);
        if (devices < 0 || devices >= count) {
            return -1;
        }
        for (int32_t row = 0; row <= devices; row++) {
            rows[row] = {0, 0, 0};
        }
        for (const auto & [type, bytes] : llama_get_memory_breakdown(context)) {
            int32_t row = devices;
            if (!ggml_backend_buft_is_host(type)) {
                ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
                for (int32_t at = 0; at < devices; at++) {
                    if (llama_model_get_device(model, at) == device) {
                        row = at;
                    }
                }
            }
            rows[row].weights += bytes.model;
            rows[row].context += bytes.context;
            rows[row].compute += bytes.compute;
        }
        return devices;
    } catch (const std::exception &) {
        return -1;
    } catch (...) {
        return -1;
    }
}

// The name of a device of a model, or null.
const char * poncho_device_name(const llama_model * model, int32_t index) {
    try {
        if (index < 0 || index >= llama_model_n_devices(model)) {
            return nullptr;
        }
        return ggml_backend_dev_name(llama_model_get_device(model, index));
    } catch (...) {
        return nullptr;
    }
}

}
