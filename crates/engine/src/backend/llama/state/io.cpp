// A sequence's state, taken from and given out in pieces that lie anywhere in memory.
//
// llama.cpp's C functions know a state as one block of bytes. Its own reading and writing goes through two small
// interfaces, which are implemented here for blocks that lie scattered: a chain of stored rows is set without being joined
// first, and of a long sequence only the bytes of some tokens are copied. `io.rs` is the only caller. No exception may
// leave this file, and it must never write outside of the memory it is given.
//
// The interfaces are not part of llama.cpp's public headers. build.rs compiles this file against those of the version that is
// linked, so a change of them is an error of the compiler.

#include "llama-io.h"
#include "llama-memory.h"

#include "ggml-backend.h"
#include "llama.h"

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

extern "C" {

// Bytes of a state that are wanted: `size` from `from` on go to `to` of the caller's buffer.
struct poncho_range {
    size_t from;
    size_t size;
    size_t to;
};

// Memory that a device reads and writes by itself.
struct poncho_span {
    const uint8_t * from;
    size_t          size;
};

// How bytes reach a device and come back: by way of `scratch`, which may be empty, or directly if the other end is locked.
// At most `threads` threads copy.
struct poncho_way {
    uint8_t *           scratch;
    size_t              scratch_size;
    const poncho_span * locked;
    size_t              n_locked;
    size_t              threads;
};

// Receives the reason for a refusal: text that ends with a zero, cut to the size.
struct poncho_reason {
    char * text;
    size_t size;
};

}

namespace {

// What comes before the memory's own bytes in every sequence state: a mark, and a sequence id that means nothing.
constexpr size_t   HEADER_SIZE = 8;
constexpr uint32_t MAGIC       = 0xaf143cd8;

// Larger pieces are copied to a device one by one. Handing over a copy takes some microseconds, and within them a thread
// brings as many bytes to where many pieces become one copy.
constexpr size_t WORTH_A_COPY = 192 * 1024;

// Bytes on their way between a tensor and host memory.
template <typename B> struct transfer {
    ggml_tensor * tensor;
    size_t        offset;
    B *           host;
    size_t        size;
};

// Copies between tensors and one block of memory, made in one go: a device waits once for all of them.
struct copies {
    std::vector<ggml_tensor *> tensors;
    std::vector<size_t>        offsets;
    std::vector<size_t>        sizes;
    std::vector<size_t>        places;

    void add(ggml_tensor * tensor, size_t offset, size_t size, size_t place) {
        // What lies side by side on both sides is one copy.
        if (!tensors.empty() && tensors.back() == tensor && offsets.back() + sizes.back() == offset &&
            places.back() + sizes.back() == place) {
            sizes.back() += size;
            return;
        }
        tensors.push_back(tensor);
        offsets.push_back(offset);
        sizes.push_back(size);
        places.push_back(place);
    }

    std::vector<transfer<uint8_t>> transfers(uint8_t * host) const {
        std::vector<transfer<uint8_t>> list;
        list.reserve(tensors.size());
        for (size_t at = 0; at < tensors.size(); at++) {
            list.push_back({ tensors[at], offsets[at], host + places[at], sizes[at] });
        }
        return list;
    }

    void set(const uint8_t * from) const {
        if (!tensors.empty()) {
            ggml_backend_tensor_set_n(tensors.data(), from, offsets.data(), sizes.data(), places.data(), tensors.size());
        }
    }

    void get(uint8_t * to) const {
        if (!tensors.empty()) {
            const std::vector<const ggml_tensor *> from(tensors.begin(), tensors.end());
            ggml_backend_tensor_get_n(from.data(), to, offsets.data(), sizes.data(), places.data(), from.size());
        }
    }
};

// Bytes that are copied within host memory.
struct host_copy {
    uint8_t *       to;
    const uint8_t * from;
    size_t          size;
};

// Less than this is copied before other threads have begun.
constexpr size_t WORTH_THREADS = 8 * 1024 * 1024;
// What a thread takes at a time.
constexpr size_t THREAD_SHARE = 512 * 1024;

// Calls `work` with every number below `count`, and with the number of the thread. One core copies at a fraction of what the
// memory can do. Threads that cannot be started are done without.
template <typename F> void side_by_side(size_t count, size_t threads, F && work) {
    std::atomic<size_t> next{ 0 };
    std::atomic<bool>   failed{ false };
    const auto          run = [&](size_t thread) {
        try {
            for (size_t at = next++; at < count; at = next++) {
                work(at, thread);
            }
        } catch (...) {
            failed = true;
        }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(threads);
    try {
        while (helpers.size() + 1 < threads) {
            helpers.emplace_back(run, helpers.size() + 1);
        }
    } catch (const std::system_error &) {
    }
    run(0);
    for (std::thread & helper : helpers) {
        helper.join();
    }
    if (failed) {
        throw std::runtime_error("a thread that copies has failed");
    }
}

// The spans are in the order of their addresses.
bool is_locked(const poncho_way & way, const uint8_t * at) {
    const poncho_span * end  = way.locked + way.n_locked;
    const poncho_span * span = std::partition_point(
        way.locked, end, [at](const poncho_span & span) { return span.from + span.size <= at; });
    return span != end && at >= span->from;
}

ggml_backend_buffer_t buffer_of(const ggml_tensor * tensor) {
    return (tensor->view_src ? tensor->view_src : tensor)->buffer;
}

// Whether several threads may copy to and from a tensor. Of the devices, those of CUDA have a queue for each thread.
bool takes_threads(const ggml_tensor * tensor) {
    ggml_backend_buffer_t buffer = buffer_of(tensor);
    const char *          name   = buffer == nullptr ? "" : ggml_backend_buffer_name(buffer);
    return (buffer != nullptr && ggml_backend_buffer_is_host(buffer)) || strncmp(name, "CUDA", 4) == 0 ||
           strncmp(name, "ROCm", 4) == 0;
}

// A device copies plain memory at a fraction of its speed, and many small pieces too. So such bytes pass through the scratch
// memory, where pieces that belong side by side become one copy. Several threads do that, each in a part of its own: they
// call `pass` with pieces that fit into that part.
template <typename B, typename F> void by_way(const std::vector<transfer<B>> & list, const poncho_way & way, F && pass) {
    size_t bytes   = 0;
    bool   can_run = true;
    for (const transfer<B> & here : list) {
        bytes += here.size;
        can_run &= takes_threads(here.tensor);
    }
    const bool   is_much = bytes >= way.scratch_size / 4;
    const size_t lanes   = std::max<size_t>(1, can_run && is_much ? std::min(way.threads, way.scratch_size / 32) : 1);
    const size_t lane    = way.scratch_size / lanes;
    // Pieces that fill a lane; longer ones are cut.
    std::vector<transfer<B>> pieces;
    std::vector<size_t>      begins;
    size_t                   filled = lane;
    pieces.reserve(list.size() + bytes / lane);
    for (const transfer<B> & here : list) {
        for (size_t done = 0; done < here.size;) {
            if (filled == lane) {
                begins.push_back(pieces.size());
                filled = 0;
            }
            const size_t some = std::min(lane - filled, here.size - done);
            pieces.push_back({ here.tensor, here.offset + done, here.host + done, some });
            filled += some;
            done += some;
        }
    }
    begins.push_back(pieces.size());
    side_by_side(begins.size() - 1, lanes, [&](size_t at, size_t thread) {
        pass(pieces.data() + begins[at], pieces.data() + begins[at + 1], way.scratch + thread * lane);
    });
}

void set_by_way(const std::vector<transfer<const uint8_t>> & list, const poncho_way & way) {
    if (way.scratch_size == 0) {
        for (const auto & here : list) {
            ggml_backend_tensor_set(here.tensor, here.host, here.offset, here.size);
        }
        return;
    }
    by_way(list, way, [](const auto * piece, const auto * end, uint8_t * part) {
        copies gathered;
        for (size_t used = 0; piece != end; used += piece->size, piece++) {
            memcpy(part + used, piece->host, piece->size);
            gathered.add(piece->tensor, piece->offset, piece->size, used);
        }
        gathered.set(part);
    });
}

void get_by_way(const std::vector<transfer<uint8_t>> & list, const poncho_way & way) {
    by_way(list, way, [](const auto * begin, const auto * end, uint8_t * part) {
        copies gathered;
        size_t used = 0;
        for (const auto * piece = begin; piece != end; used += piece->size, piece++) {
            gathered.add(piece->tensor, piece->offset, piece->size, used);
        }
        gathered.get(part);
        for (const auto * piece = begin; piece != end; part += piece->size, piece++) {
            memcpy(piece->host, part, piece->size);
        }
    });
}

// A place in a state that lies in pieces.
struct cursor {
    const iovec * piece;
    const iovec * end;
    size_t        used;

    // Hands out the next `size` bytes, piece by piece.
    template <typename F> void take(size_t size, F && use) {
        while (size > 0) {
            if (piece == end) {
                throw std::runtime_error("the pieces of the state end too soon");
            }
            const size_t some = std::min(size, piece->iov_len - used);
            use(static_cast<const uint8_t *>(piece->iov_base) + used, some);
            used += some;
            size -= some;
            if (used == piece->iov_len) {
                piece++;
                used = 0;
            }
        }
    }
};

struct pieces_reader final : llama_io_read_i {
    pieces_reader(const iovec * pieces, size_t count) : at{ pieces, pieces + count, 0 } {}

    void read(void * dst, size_t size) override {
        auto * to = static_cast<uint8_t *>(dst);
        at.take(size, [&](const uint8_t * from, size_t some) {
            memcpy(to, from, some);
            to += some;
        });
        taken += size;
    }

    // Copied by apply(), when all of the state has been found to be right.
    void read_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        stretches.push_back({ tensor, offset, size, at });
        at.take(size, [](const uint8_t *, size_t) {});
        taken += size;
    }

    void discard() override { stretches.clear(); }

    size_t n_bytes() override { return taken; }

    // Without scratch memory much is copied by several threads, if all of it stays in host memory.
    void apply(const poncho_way & way) {
        if (way.scratch_size == 0 && way.threads > 1 && taken >= WORTH_THREADS && all_on_host()) {
            const std::vector<host_copy> list = host_copies();
            side_by_side(list.size(), way.threads,
                         [&](size_t at, size_t) { memcpy(list[at].to, list[at].from, list[at].size); });
            return;
        }
        copies                               direct;
        std::vector<transfer<const uint8_t>> others;
        for (stretch & here : stretches) {
            size_t offset = here.offset;
            here.from.take(here.size, [&](const uint8_t * from, size_t size) {
                if (size >= std::min(WORTH_A_COPY, way.scratch_size) && is_locked(way, from)) {
                    direct.add(here.tensor, offset, size, reinterpret_cast<uintptr_t>(from));
                } else {
                    others.push_back({ here.tensor, offset, from, size });
                }
                offset += size;
            });
        }
        // Places are whole addresses here.
        direct.set(nullptr);
        set_by_way(others, way);
    }

  private:
    // Bytes of a tensor, and where in the state they lie.
    struct stretch {
        ggml_tensor * tensor;
        size_t        offset;
        size_t        size;
        cursor        from;
    };

    bool all_on_host() const {
        return std::all_of(stretches.begin(), stretches.end(), [](const stretch & here) {
            ggml_backend_buffer_t buffer = buffer_of(here.tensor);
            return buffer != nullptr && ggml_backend_buffer_is_host(buffer) && here.tensor->data != nullptr;
        });
    }

    std::vector<host_copy> host_copies() {
        std::vector<host_copy> list;
        list.reserve(taken / THREAD_SHARE + stretches.size());
        for (stretch & here : stretches) {
            if (here.offset + here.size > ggml_nbytes(here.tensor)) {
                throw std::runtime_error("the state is larger than its tensor");
            }
            auto * to = static_cast<uint8_t *>(here.tensor->data) + here.offset;
            here.from.take(here.size, [&](const uint8_t * from, size_t size) {
                while (size > 0) {
                    const size_t some = std::min(size, THREAD_SHARE);
                    list.push_back({ to, from, some });
                    to += some;
                    from += some;
                    size -= some;
                }
            });
        }
        return list;
    }

    cursor               at;
    size_t               taken = 0;
    std::vector<stretch> stretches;
};

void tell(poncho_reason reason, const char * what) {
    if (reason.size > 0) {
        snprintf(reason.text, reason.size, "%s", what);
    }
}

// Runs `call`; if it throws, reports the reason and returns `otherwise`.
template <typename T, typename F> T caught(poncho_reason reason, T otherwise, F && call) {
    try {
        return call();
    } catch (const std::exception & error) {
        tell(reason, error.what());
    } catch (...) {
        tell(reason, "an exception without a word");
    }
    return otherwise;
}

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
    size_t copy(const poncho_range * range, const poncho_range * end, uint8_t * out, const poncho_way & way) const {
        copies wanted;
        size_t copied = 0;
        for (const stretch & here : stretches) {
            const size_t until = here.from + here.size;
            while (range != end && range->from < until) {
                const size_t begin = std::max(here.from, range->from);
                const size_t stop  = std::min(until, range->from + range->size);
                if (begin < stop) {
                    const size_t offset = here.offset + (begin - here.from);
                    wanted.add(here.tensor, offset, stop - begin, range->to + (begin - range->from));
                    copied += stop - begin;
                }
                if (range->from + range->size > until) {
                    break;
                }
                range++;
            }
        }
        if (way.scratch_size == 0 || is_locked(way, out)) {
            wanted.get(out);
        } else {
            get_by_way(wanted.transfers(out), way);
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

// Sets a sequence to the state that the pieces, none of them empty, are one after the other. Returns the bytes that were
// read; 0 if the state was refused. A piece lies in locked memory wholly or not at all.
size_t poncho_state_set_pieces(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags,
                               const iovec * pieces, size_t count, poncho_way way, poncho_reason reason) {
    return caught(reason, size_t(0), [&]() -> size_t {
        llama_synchronize(context);
        pieces_reader io(pieces, count);
        uint8_t       header[HEADER_SIZE];
        io.read(header, sizeof(header));
        llama_memory_i * memory = llama_get_memory(context);
        if (memory == nullptr) {
            throw std::runtime_error("the context has no memory");
        }
        memory->state_read(io, seq, flags);
        io.apply(way);
        return io.n_bytes();
    });
}

// Looks at the state of a sequence; null if it cannot be had. It is good until something happens to the context, and must be closed.
poncho_state * poncho_state_open(llama_context * context, llama_seq_id seq, llama_state_seq_flags flags,
                                 poncho_reason reason) {
    return caught(reason, static_cast<poncho_state *>(nullptr), [&]() -> poncho_state * {
        auto state = std::make_unique<poncho_state>();
        llama_synchronize(context);
        state->write(&MAGIC, sizeof(MAGIC));
        state->write(&seq, sizeof(seq));
        if (const llama_memory_i * memory = llama_get_memory(context)) {
            memory->state_write(*state, seq, flags);
        }
        return state.release();
    });
}

// The state without the bytes of its tensors.
iovec poncho_state_frame(const poncho_state * state) {
    return { const_cast<uint8_t *>(state->frame.data()), state->frame.size() };
}

// Copies ranges of the tensors' bytes, which are in order and do not overlap, to `out`, which lies in locked memory wholly or
// not at all. Returns the bytes that were copied.
size_t poncho_state_copy(const poncho_state * state, const poncho_range * ranges, size_t count, uint8_t * out,
                         poncho_way way, poncho_reason reason) {
    return caught(reason, size_t(0), [&]() -> size_t { return state->copy(ranges, ranges + count, out, way); });
}

void poncho_state_close(poncho_state * state) {
    delete state;
}

// Copies between the cells of sequences are put off until the next decode, and would overwrite what is restored before that.
// Makes them now. False if that failed.
bool poncho_memory_update(llama_context * context, poncho_reason reason) {
    return caught(reason, false, [&]() -> bool {
        llama_memory_i * memory = llama_get_memory(context);
        if (memory == nullptr) {
            return true;
        }
        const auto update = memory->init_update(context, false);
        switch (update->get_status()) {
            case LLAMA_MEMORY_STATUS_NO_UPDATE:
                return true;
            case LLAMA_MEMORY_STATUS_SUCCESS:
                return update->apply();
            default:
                return false;
        }
    });
}

}
