// Ensembles of critics with two hidden ReLU layers, each normalised by the moments of its batch:
// values, and the way back from them to all weights.
//
// A bias before a normalisation would do nothing, so there is none.

#include "numbers.h"

namespace {

// Gain and shift of a normalisation, and the variance of its batch.
//
// All passes go along the rows: a column's sum waits in the nearest cache for its next row.
struct Norm {
  const float *gain, *shift, *variance;
  int64_t rows, columns;
  float floor;

  // use(index, column) for every vector.
  template <typename Use>
  void each(const Use& use) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; c += kLanes) use(r * columns + c, c);
  }

  // From `x` to x - mean over deviation, in place, and what the next layer sees of it.
  void forward(float* x, float* mean, float* variance, float* out) const {
    std::fill(mean, mean + columns, 0.0f);
    std::fill(variance, variance + columns, 0.0f);
    each([=](int64_t i, int64_t c) { store(mean + c, load(mean + c) + load(x + i)); });
    for (int64_t c = 0; c < columns; ++c) mean[c] /= rows;
    each([=](int64_t i, int64_t c) {
      Vec away = load(x + i) - load(mean + c);
      store(variance + c, load(variance + c) + away * away);
    });
    float* scale = scratch.get(kErrors, columns);
    for (int64_t c = 0; c < columns; ++c) {
      variance[c] /= rows;
      scale[c] = 1.0f / std::sqrt(variance[c] + floor);
    }
    const float *gain = this->gain, *shift = this->shift;
    each([=](int64_t i, int64_t c) {
      Vec hat = (load(x + i) - load(mean + c)) * load(scale + c);
      store(x + i, hat);
      store(out + i, positive(load(gain + c) * hat + load(shift + c)));
    });
  }

  // What the next layer sees.
  void seen(const float* hat, float* out) const {
    const float *gain = this->gain, *shift = this->shift;
    each([=](int64_t i, int64_t c) {
      store(out + i, positive(load(gain + c) * load(hat + i) + load(shift + c)));
    });
  }

  // From cotangents behind the activation to those before the normalisation, in place.
  void backward(const float* hat, float* cotangents, float* by_gain, float* by_shift) const {
    const float *gain = this->gain, *shift = this->shift;
    std::fill(by_gain, by_gain + columns, 0.0f);
    std::fill(by_shift, by_shift + columns, 0.0f);
    each([=](int64_t i, int64_t c) {
      const Vec x = load(hat + i), y = load(gain + c) * x + load(shift + c);
      const Vec g = y > 0.0f ? load(cotangents + i) : Vec{};
      store(cotangents + i, g);
      store(by_gain + c, load(by_gain + c) + g * x);
      store(by_shift + c, load(by_shift + c) + g);
    });
    // What would move the batch's mean or variance is taken out.
    float* level = scratch.get(kErrors, 3 * columns);
    float *slope = level + columns, *scale = slope + columns;
    for (int64_t c = 0; c < columns; ++c) {
      level[c] = by_shift[c] / rows;
      slope[c] = by_gain[c] / rows;
      scale[c] = gain[c] / std::sqrt(variance[c] + floor);
    }
    each([=](int64_t i, int64_t c) {
      const Vec g = load(cotangents + i) - load(level + c) - load(slope + c) * load(hat + i);
      store(cotangents + i, load(scale + c) * g);
    });
  }

 private:
  // And not the other way round: what is not a number stays so.
  static Vec positive(Vec y) { return y < 0.0f ? Vec{} : y; }
};

// The arguments that both calls have in common. `last` is [outputs, hidden].
struct Ensemble {
  const float *inputs, *weight1, *gain1, *shift1, *weight2, *gain2, *shift2, *last, *last_bias;
  int64_t rows, size, members, hidden, outputs;

  Ensemble(Array inputs, Array weight1, Array gain1, Array shift1, Array weight2, Array gain2,
           Array shift2, Array last, Array last_bias)
      : inputs(inputs.typed_data()),
        weight1(weight1.typed_data()),
        gain1(gain1.typed_data()),
        shift1(shift1.typed_data()),
        weight2(weight2.typed_data()),
        gain2(gain2.typed_data()),
        shift2(shift2.typed_data()),
        last(last.typed_data()),
        last_bias(last_bias.typed_data()),
        rows(inputs.dimensions()[0]),
        size(inputs.dimensions()[1]),
        members(last.dimensions()[0]),
        hidden(last.dimensions()[2]),
        outputs(last.dimensions()[1]) {}

  Norm norm(int64_t m, const float* gain, const float* shift, const float* variance,
            float floor) const {
    return {gain + m * hidden, shift + m * hidden, variance + m * hidden, rows, hidden, floor};
  }
};

// One member's product of `in` with its weights, or with their transpose.
void layer(Matrix in, int64_t rows, int64_t depth, Matrix weight, int64_t columns, float* out) {
  float* packed = scratch.get(kPacked, depth * columns);
  pack(weight, depth, columns, packed);
  product(in, rows, depth, packed, columns, out);
}

ffi::Error Forward(ffi::ThreadPool pool, Array inputs, Array weight1, Array gain1, Array shift1,
                   Array weight2, Array gain2, Array shift2, Array last, Array last_bias,
                   Result values, Result hat1, Result hat2, Result mean1, Result variance1,
                   Result mean2, Result variance2, float floor) {
  Ensemble e(inputs, weight1, gain1, shift1, weight2, gain2, shift2, last, last_bias);
  const int64_t R = e.rows, I = e.size, H = e.hidden, O = e.outputs;
  share(pool, e.members, [&](int64_t m) {
    auto of = [m, &e](Result& all) {
      return all->typed_data() + m * (int64_t)all->element_count() / e.members;
    };
    float* seen = scratch.get(kFirst, R * H);
    layer(plain(e.inputs, I), R, I, plain(e.weight1 + m * I * H, H), H, of(hat1));
    e.norm(m, e.gain1, e.shift1, variance1->typed_data(), floor)
        .forward(of(hat1), of(mean1), of(variance1), seen);
    layer(plain(seen, H), R, H, plain(e.weight2 + m * H * H, H), H, of(hat2));
    e.norm(m, e.gain2, e.shift2, variance2->typed_data(), floor)
        .forward(of(hat2), of(mean2), of(variance2), seen);
    const float *last = e.last + m * O * H, *bias = e.last_bias + m * O;
    for (int64_t r = 0; r < R; ++r)
      for (int64_t o = 0; o < O; ++o)
        of(values)[r * O + o] = dot(seen + r * H, last + o * H, H) + bias[o];
  });
  return ffi::Error::Success();
}

ffi::Error Backward(ffi::ThreadPool pool, Array inputs, Array weight1, Array gain1, Array shift1,
                    Array weight2, Array gain2, Array shift2, Array last, Array last_bias,
                    Array hat1, Array hat2, Array variance1, Array variance2, Array cotangents,
                    Result by_weight1, Result by_gain1, Result by_shift1, Result by_weight2,
                    Result by_gain2, Result by_shift2, Result by_last, Result by_last_bias,
                    float floor) {
  Ensemble e(inputs, weight1, gain1, shift1, weight2, gain2, shift2, last, last_bias);
  const int64_t R = e.rows, I = e.size, H = e.hidden, O = e.outputs;
  share(pool, e.members, [&](int64_t m) {
    auto of = [m, &e](auto& all) {
      return all->typed_data() + m * (int64_t)all->element_count() / e.members;
    };
    const float *first = hat1.typed_data() + m * R * H, *second = hat2.typed_data() + m * R * H;
    const float *g = cotangents.typed_data() + m * R * O, *last = e.last + m * O * H;
    const Norm norm1 = e.norm(m, e.gain1, e.shift1, variance1.typed_data(), floor);
    const Norm norm2 = e.norm(m, e.gain2, e.shift2, variance2.typed_data(), floor);

    float *by_second = scratch.get(kSecond, R * H), *seen = scratch.get(kFirst, R * H);
    float *to = of(by_last), *to_bias = of(by_last_bias);
    norm2.seen(second, seen);
    std::fill(to, to + O * H, 0.0f);
    std::fill(to_bias, to_bias + O, 0.0f);
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t o = 0; o < O; ++o) to_bias[o] += g[r * O + o];
      for (int64_t h = 0; h < H; h += kLanes) {
        Vec back = {};
        for (int64_t o = 0; o < O; ++o) {
          back += g[r * O + o] * load(last + o * H + h);
          float* at = to + o * H + h;
          store(at, load(at) + g[r * O + o] * load(seen + r * H + h));
        }
        store(by_second + r * H + h, back);
      }
    }
    norm2.backward(second, by_second, of(by_gain2), of(by_shift2));

    norm1.seen(first, seen);
    layer(transposed(seen, H), H, R, plain(by_second, H), H, of(by_weight2));
    float* by_first = scratch.get(kBack, R * H);
    layer(plain(by_second, H), R, H, transposed(e.weight2 + m * H * H, H), H, by_first);
    norm1.backward(first, by_first, of(by_gain1), of(by_shift1));
    layer(transposed(e.inputs, I), I, R, plain(by_first, H), H, of(by_weight1));
  });
  return ffi::Error::Success();
}

auto arguments() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<Array>()                             // inputs
      .Arg<Array>().Arg<Array>().Arg<Array>()   // first layer: weight, gain, shift
      .Arg<Array>().Arg<Array>().Arg<Array>()   // second layer
      .Arg<Array>().Arg<Array>();               // last layer: weight, bias
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(normalised_forward, Forward,
                              arguments()
                                  .Ret<Array>()                             // values
                                  .Ret<Array>().Ret<Array>()                // normalised layers
                                  .Ret<Array>().Ret<Array>()                // moments of the first
                                  .Ret<Array>().Ret<Array>()                // and of the second
                                  .Attr<float>("floor"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(normalised_backward, Backward,
                              arguments()
                                  .Arg<Array>().Arg<Array>()                // normalised layers
                                  .Arg<Array>().Arg<Array>()                // their variances
                                  .Arg<Array>()                             // cotangents
                                  .Ret<Array>().Ret<Array>().Ret<Array>()
                                  .Ret<Array>().Ret<Array>().Ret<Array>()
                                  .Ret<Array>().Ret<Array>()
                                  .Attr<float>("floor"));
