// A sequence's state, taken from and given out in pieces that lie anywhere in memory.
//
// llama.cpp's C functions know a state as one block of bytes. Its own reading and writing goes through two small
// interfaces, which are implemented here for blocks that lie scattered: a chain of stored rows is set without being joined
// first, and of a long sequence only the bytes of some tokens are copied. `state_io.rs` is the only caller. No exception may
// leave this file, and it must never write outside of the memory it is given.
//
// The interfaces are not part of llama.cpp's public headers. build.rs compiles this file against those of the very
// version that is linked, so a change of them is an error of the compiler.

#include "llama-io.h"
#include "llama-memory.h"

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

extern "C" {

// Some bytes of a state; a state is such pieces, one after the other.
struct poncho_piece {
    const uint8_t * data;
    size_t          size;
};

// Bytes of a state that are wanted: `size` from `from` on go to `to` of the caller's buffer.
struct poncho_range {
    size_t from;
    size_t size;
    size_t to;
};

}

namespace {

// What comes before the memory's own bytes in every sequence state: a mark, and a sequence id that means nothing.
constexpr size_t   HEADER_SIZE = 8;
constexpr uint32_t MAGIC       = 0xaf143cd8;

struct pieces_reader final : llama_io_read_i {
    pieces_reader(const poncho_piece * pieces, size_t count) : piece(pieces), end(pieces + count) {}

    void read(void * dst, size_t size) override {
        auto * to = static_cast<uint8_t *>(dst);
        take(size, [&](const uint8_t * from, size_t some) {
            memcpy(to, from, some);
            to += some;
        });
    }

    // Copied by apply(), when all of the state has been found to be right.
    void read_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        take(size, [&](const uint8_t * from, size_t some) {
            copies.push_back({ tensor, offset, from, some });
            offset += some;
        });
    }

    void discard() override { copies.clear(); }

    size_t n_bytes() override { return taken; }

    // What lies side by side in a tensor is copied at once as far as there is scratch memory for it: a device takes one
    // copy sooner than many.
    void apply(uint8_t * scratch, size_t scratch_size) const {
        for (size_t i = 0; i < copies.size();) {
            const copy & first = copies[i];
            size_t       size  = first.size;
            size_t       after = i + 1;
            while (after < copies.size() && copies[after].tensor == first.tensor &&
                   copies[after].offset == first.offset + size && size + copies[after].size <= scratch_size) {
                size += copies[after++].size;
            }
            const uint8_t * from = first.from;
            if (after > i + 1) {
                uint8_t * to = scratch;
                for (size_t k = i; k < after; k++) {
                    memcpy(to, copies[k].from, copies[k].size);
                    to += copies[k].size;
                }
                from = scratch;
            }
            ggml_backend_tensor_set(first.tensor, from, first.offset, size);
            i = after;
        }
    }

  private:
    template <typename F> void take(size_t size, F && use) {
        while (size > 0) {
            if (piece == end) {
                throw std::runtime_error("the pieces of the state end too soon");
            }
            const size_t some = std::min(size, piece->size - used);
            use(piece->data + used, some);
            used  += some;
            taken += some;
            size  -= some;
            if (used == piece->size) {
                piece++;
                used = 0;
            }
        }
    }

    struct copy {
        ggml_tensor *   tensor;
        size_t          offset;
        const uint8_t * from;
        size_t          size;
    };

    const poncho_piece * piece;
    const poncho_piece * end;
    size_t               used  = 0;
    size_t               taken = 0;
    std::vector<copy>    copies;
};

}

// A state as it stands in a context: everything but the tensors' bytes, and where those lie.
struct poncho_state final : llama_io_write_i {
    void write(const void * src, size_t size) override {
        const auto * from = static_cast<const uint8_t *>(src);
        frame.insert(frame.end(), from, from + size);
        written += size;
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        stretches.push_back({ tensor, offset, written, size });
        written += size;
    }

    size_t n_bytes() override { return written; }

    // Copies what the ranges and the tensors have in common; both are in the order of the state.
    size_t copy(const poncho_range * range, const poncho_range * end, uint8_t * out) const {
        size_t copied = 0;
        for (const stretch & here : stretches) {
            const size_t until = here.from + here.size;
            while (range != end && range->from < until) {
                const size_t begin = std::max(here.from, range->from);
                const size_t stop  = std::min(until, range->from + range->size);
                if (begin < stop) {
                    ggml_backend_tensor_get(here.tensor, out + range->to + (begin - range->from),
                                            here.offset + (begin - here.from), stop - begin);
                    copied += stop - begin;
                }
                if (range->from + range->size > until) {
                    break;
                }
                range++;
            }
        }
        return copied;
    }

    std::vector<uint8_t> frame;

  private:
    // Bytes of a tensor, from `offset` on, that are the state's from `from` on.
    struct stretch {
        ggml_tensor * tensor;
        size_t        offset;
        size_t        from;
        size_t        size;
    };

    std::vector<stretch> stretches;
    size_t               written = 0;
};

extern "C" {

// Sets a sequence to a state. Returns the bytes that were read; 0 if the state was refused. `scratch` may be empty.
size_t poncho_state_set_pieces(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags,
                               const poncho_piece * pieces, size_t count, uint8_t * scratch, size_t scratch_size) {
    try {
        llama_synchronize(context);
        pieces_reader io(pieces, count);
        uint8_t       header[HEADER_SIZE];
        io.read(header, sizeof(header));
        llama_memory_i * memory = llama_get_memory(context);
        if (memory == nullptr) {
            return 0;
        }
        memory->state_read(io, seq, flags);
        io.apply(scratch, scratch_size);
        return io.n_bytes();
    } catch (...) {
        return 0;
    }
}

// Looks at the state of a sequence; null if it cannot be had. It is good until something happens to the context, and must be closed.
poncho_state * poncho_state_open(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags) {
    try {
        auto state = std::make_unique<poncho_state>();
        llama_synchronize(context);
        state->write(&MAGIC, sizeof(MAGIC));
        state->write(&seq, sizeof(seq));
        if (const llama_memory_i * memory = llama_get_memory(context)) {
            memory->state_write(*state, seq, flags);
        }
        return state.release();
    } catch (...) {
        return nullptr;
    }
}

// The state without the bytes of its tensors.
poncho_piece poncho_state_frame(const poncho_state * state) {
    return { state->frame.data(), state->frame.size() };
}

// Copies ranges of the tensors' bytes, which are in order and do not overlap, to `out`. Returns the bytes that were copied.
size_t poncho_state_copy(const poncho_state * state, const poncho_range * ranges, size_t count, uint8_t * out) {
    try {
        return state->copy(ranges, ranges + count, out);
    } catch (...) {
        return 0;
    }
}

void poncho_state_close(poncho_state * state) {
    delete state;
}

}
