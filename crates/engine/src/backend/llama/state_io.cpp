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

    void apply(uint8_t * scratch, size_t scratch_size) {
        for (size_t i = 0; i < copies.size();) {
            size_t size  = copies[i].size;
            size_t after = i + 1;
            // A device takes one copy sooner than many.
            if (!ggml_backend_buffer_is_host(copies[i].tensor->buffer)) {
                while (after < copies.size() && copies[after].tensor == copies[i].tensor &&
                       copies[after].offset == copies[i].offset + size && size + copies[after].size <= scratch_size) {
                    size += copies[after++].size;
                }
            }
            const uint8_t * from = copies[i].from;
            if (after > i + 1) {
                uint8_t * to = scratch;
                for (size_t k = i; k < after; k++) {
                    memcpy(to, copies[k].from, copies[k].size);
                    to += copies[k].size;
                }
                from = scratch;
            }
            ggml_backend_tensor_set(copies[i].tensor, from, copies[i].offset, size);
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

// Everything but the tensors' bytes: counts, positions, types and sizes.
struct frame_writer final : llama_io_write_i {
    frame_writer(uint8_t * out, size_t capacity) : out(out), capacity(capacity) {}

    void write(const void * src, size_t size) override {
        if (written <= capacity && size <= capacity - written) {
            memcpy(out + written, src, size);
        }
        written += size;
    }

    void write_tensor(ggml_tensor *, size_t, size_t) override {}

    size_t n_bytes() override { return written; }

  private:
    uint8_t * out;
    size_t    capacity;
    size_t    written = 0;
};

struct ranges_writer final : llama_io_write_i {
    ranges_writer(const poncho_range * ranges, size_t count, uint8_t * out) :
        range(ranges), end(ranges + count), out(out) {}

    void write(const void * src, size_t size) override {
        give(size, [&](size_t skipped, size_t some, uint8_t * to) {
            memcpy(to, static_cast<const uint8_t *>(src) + skipped, some);
        });
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        give(size, [&](size_t skipped, size_t some, uint8_t * to) {
            ggml_backend_tensor_get(tensor, to, offset + skipped, some);
        });
    }

    size_t n_bytes() override { return at; }

    size_t copied = 0;

  private:
    // Hands out what the next `size` bytes of the state and the ranges, which are in order, have in common.
    template <typename F> void give(size_t size, F && copy) {
        const size_t until = at + size;
        while (range != end && range->from < until) {
            const size_t begin = std::max(at, range->from);
            const size_t stop  = std::min(until, range->from + range->size);
            if (begin < stop) {
                copy(begin - at, stop - begin, out + range->to + (begin - range->from));
                copied += stop - begin;
            }
            if (range->from + range->size > until) {
                break;
            }
            range++;
        }
        at = until;
    }

    const poncho_range * range;
    const poncho_range * end;
    uint8_t *            out;
    size_t               at = 0;
};

void write_state(llama_context * context, llama_io_write_i & io, llama_seq_id seq, llama_state_seq_flags flags) {
    llama_synchronize(context);
    io.write(&MAGIC, sizeof(MAGIC));
    io.write(&seq, sizeof(seq));
    if (const llama_memory_i * memory = llama_get_memory(context)) {
        memory->state_write(io, seq, flags);
    }
}

}

extern "C" {

// Sets a sequence to a state. Returns the bytes that were read; 0 if the state was refused. With a device, copies go
// through `scratch`, which may be empty.
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

// Copies a state without its tensors to `out`, if it fits. Returns the bytes that it has; 0 if it was refused.
size_t poncho_state_get_frame(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags, uint8_t * out,
                              size_t capacity) {
    try {
        frame_writer io(out, capacity);
        write_state(context, io, seq, flags);
        return io.n_bytes();
    } catch (...) {
        return 0;
    }
}

// Copies ranges of a state, which are in order and do not overlap, to `out`. Returns the bytes that were copied.
size_t poncho_state_get_ranges(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags,
                               const poncho_range * ranges, size_t count, uint8_t * out) {
    try {
        ranges_writer io(ranges, count, out);
        write_state(context, io, seq, flags);
        return io.copied;
    } catch (...) {
        return 0;
    }
}

}
