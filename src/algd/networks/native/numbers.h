// Vectors, activations, matrix products and the sharing of work, for networks on a CPU.
//
// Every sum runs over its terms in their order, so that a row's result depends neither on its
// neighbours nor on the number of threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// --- numbers, a vector at a time ------------------------------------------------------------------

// A tile of the result, `kTileRows` by two vectors, fills the registers but for three or four.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 12;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kTileRows = 6;
#else
constexpr int kLanes = 4, kTileRows = 6;
#endif
constexpr int kTileColumns = 2 * kLanes;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));

inline Vec load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline void store(float* to, Vec v) { std::memcpy(to, &v, sizeof(v)); }

inline Vec fill(float x) { return x - Vec{}; }

inline float sum(Vec v) {
  float total = 0.0f;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

inline Vec to_bfloat16(Vec x) {
  Bits bits = (Bits)x;
  return (Vec)((bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000);
}

// 1 / (1 + e^-x). e^-x = 2^n 2^f with |f| <= 1/2, where a polynomial serves; n goes into the
// exponent's bits.
inline Vec sigmoid(Vec x) {
  x = x < 87.0f ? x : fill(87.0f);
  x = x > -87.0f ? x : fill(-87.0f);
  const Vec shift = fill(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to an integer
  Vec shifted = x * -1.44269504f + shift;
  Vec f = x * -1.44269504f - (shifted - shift);
  Vec p = fill(1.5403530e-4f);
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return 1.0f / (1.0f + (Vec)((Bits)p + ((Bits)shifted << 23)));
}

struct Relu {
  static void apply(Vec x, Vec& value, Vec& slope) {
    value = x < 0.0f ? Vec{} : x;  // and not the other way round: what is not a number stays so
    slope = x > 0.0f ? fill(1.0f) : Vec{};
  }
};

struct Silu {
  static void apply(Vec x, Vec& value, Vec& slope) {
    Vec s = sigmoid(x);
    value = x * s;
    slope = s + value * (1.0f - s);
  }
};

inline float dot(const float* left, const float* right, int64_t size) {
  Vec terms = {};
  for (int64_t i = 0; i < size; i += kLanes) terms += load(left + i) * load(right + i);
  return sum(terms);
}

// --- matrix products ------------------------------------------------------------------------------

struct Matrix {
  const float* data;
  int64_t row, column;  // steps from one to the next
};

inline Matrix plain(const float* data, int64_t width) { return {data, width, 1}; }
inline Matrix transposed(const float* data, int64_t width) { return {data, 1, width}; }

// `rows` rows of the product with a panel of kTileColumns columns.
template <int rows>
inline void tile(Matrix in, int64_t depth, const float* panel, float* out, int64_t width) {
  Vec sums[rows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vec left = load(panel + k * kTileColumns), right = load(panel + k * kTileColumns + kLanes);
    for (int r = 0; r < rows; ++r) {
      Vec x = fill(in.data[r * in.row + k * in.column]);
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
  for (int r = 0; r < rows; ++r) {
    store(out + r * width, sums[r][0]);
    store(out + r * width + kLanes, sums[r][1]);
  }
}

template <int rows>
inline void last_tile(int64_t left, Matrix in, int64_t depth, const float* panel, float* out,
                      int64_t width) {
  if constexpr (rows > 0) {
    if (left == rows) return tile<rows>(in, depth, panel, out, width);
    last_tile<rows - 1>(left, in, depth, panel, out, width);
  }
}

// A matrix in the order in which tiles read it: panels of kTileColumns columns, row by row.
void pack(Matrix weight, int64_t depth, int64_t columns, bool rounded, float* packed) {
  for (int64_t first = 0; first < columns; first += kTileColumns)
    for (int64_t k = 0; k < depth; ++k, packed += kTileColumns) {
      const float* from = weight.data + k * weight.row + first * weight.column;
      for (int c = 0; c < kTileColumns; c += kLanes, from += kLanes * weight.column) {
        Vec x;
        if (weight.column == 1)
          x = load(from);
        else
          for (int i = 0; i < kLanes; ++i) x[i] = from[i * weight.column];
        store(packed + c, rounded ? to_bfloat16(x) : x);
      }
    }
}

// out[rows, columns] = in[rows, depth] * weight[depth, columns], the weight packed.
void product(Matrix in, int64_t rows, int64_t depth, const float* packed, int64_t columns,
             float* out) {
  for (int64_t first = 0; first < columns; first += kTileColumns, packed += depth * kTileColumns) {
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows)
      tile<kTileRows>({in.data + r * in.row, in.row, in.column}, depth, packed,
                      out + r * columns + first, columns);
    last_tile<kTileRows - 1>(rows - r, {in.data + r * in.row, in.row, in.column}, depth, packed,
                             out + r * columns + first, columns);
  }
}

// --- memory ---------------------------------------------------------------------------------------

// Memory of one thread, kept from call to call.
class Scratch {
 public:
  float* get(int slot, int64_t size) {
    auto& [held, data] = slots_[slot];
    if (held < size) {
      data.reset(static_cast<float*>(std::aligned_alloc(64, (4 * size + 63) / 64 * 64)));
      held = size;
    }
    return data.get();
  }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::pair<int64_t, std::unique_ptr<float[], Free>> slots_[9];
};

thread_local Scratch scratch;
enum { kPacked, kPackedObs, kHalves, kFirst, kSecond, kFirstSlopes, kSecondSlopes, kBack, kErrors };

// --- threads --------------------------------------------------------------------------------------

// work(i) for i < count, on the pool's threads and this one. What no other thread has begun is done
// here, so that it ends even if the pool has no thread to spare.
template <typename Work>
void share(ffi::ThreadPool& pool, int64_t count, const Work& work) {
  struct Progress {
    std::atomic<int64_t> begun{0}, done{0};
  };
  auto progress = std::make_shared<Progress>();
  // A helper that comes late finds nothing left to begin and does not touch `work`, which may be gone.
  auto labour = [progress, count, &work] {
    for (int64_t i; (i = progress->begun++) < count; ++progress->done) work(i);
  };
  for (int64_t i = 1; i < std::min<int64_t>(pool.num_threads(), count); ++i)
    pool.Schedule(std::function<void()>(labour));
  labour();
  while (progress->done < count) std::this_thread::yield();
}

// work(first, last) for as many parts of the rows as there are threads.
template <typename Work>
void share_rows(ffi::ThreadPool& pool, int64_t rows, const Work& work) {
  const int64_t parts = std::min<int64_t>(pool.num_threads(), (rows + 63) / 64);
  share(pool, parts, [&](int64_t i) { work(i * rows / parts, (i + 1) * rows / parts); });
}

using Array = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Array>;

}  // namespace
