// A network with two hidden ReLU layers: its outputs, and the way back from them to what each layer's
// activation was applied to and to the inputs. The gradients of the weights are products of these.

#include "numbers.h"

namespace {

struct Mlp {
  int64_t rows, inputs, hidden, outputs;
  const float *x, *weight1, *bias1, *weight2, *bias2, *last, *last_bias;  // last is [outputs, hidden]

  // Outputs and activations of the rows from `begin` to `end`.
  void forward(int64_t begin, int64_t end, float* first, float* second, float* out) const {
    layer(x, inputs, weight1, bias1, begin, end, first);
    layer(first, hidden, weight2, bias2, begin, end, second);
    for (int64_t r = begin; r < end; ++r)
      for (int64_t o = 0; o < outputs; ++o)
        out[r * outputs + o] = dot(second + r * hidden, last + o * hidden, hidden) + last_bias[o];
  }

  // Cotangents before each activation and of the inputs, from those of the outputs.
  void backward(int64_t begin, int64_t end, const float* first, const float* second,
                const float* cotangents, float* by_first, float* by_second, float* by_x) const {
    const int64_t H = hidden, rows = end - begin;
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = 0; h < H; h += kLanes) {
        Vec g = {};
        for (int64_t o = 0; o < outputs; ++o)
          g += cotangents[r * outputs + o] * load(last + o * H + h);
        store(by_second + r * H + h, where_positive(load(second + r * H + h), g));
      }
    float* packed = scratch.get(kPacked, H * std::max(H, inputs));
    pack(transposed(weight2, H), H, H, packed);
    product(plain(by_second + begin * H, H), rows, H, packed, H, by_first + begin * H);
    for (int64_t i = begin * H; i < end * H; i += kLanes)
      store(by_first + i, where_positive(load(first + i), load(by_first + i)));
    pack(transposed(weight1, H), H, inputs, packed);
    product(plain(by_first + begin * H, H), rows, H, packed, inputs, by_x + begin * inputs);
  }

 private:
  static Vec where_positive(Vec x, Vec value) { return x > 0.0f ? value : Vec{}; }

  void layer(const float* in, int64_t depth, const float* weight, const float* bias, int64_t begin,
             int64_t end, float* out) const {
    float* packed = scratch.get(kPacked, depth * hidden);
    pack(plain(weight, hidden), depth, hidden, packed);
    product(plain(in + begin * depth, depth), end - begin, depth, packed, hidden,
            out + begin * hidden);
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = 0; h < hidden; h += kLanes) {
        Vec value, slope;
        Relu::apply(load(out + r * hidden + h) + load(bias + h), value, slope);
        store(out + r * hidden + h, value);
      }
  }
};

Mlp read(Array x, Array weight1, Array bias1, Array weight2, Array bias2, Array last,
         Array last_bias) {
  return {x.dimensions()[0],    x.dimensions()[1],    weight2.dimensions()[0], last.dimensions()[0],
          x.typed_data(),       weight1.typed_data(), bias1.typed_data(),      weight2.typed_data(),
          bias2.typed_data(),   last.typed_data(),    last_bias.typed_data()};
}

ffi::Error Forward(ffi::ThreadPool pool, Array x, Array weight1, Array bias1, Array weight2,
                   Array bias2, Array last, Array last_bias, Result out, Result first,
                   Result second) {
  Mlp mlp = read(x, weight1, bias1, weight2, bias2, last, last_bias);
  share_rows(pool, mlp.rows, [&](int64_t begin, int64_t end) {
    mlp.forward(begin, end, first->typed_data(), second->typed_data(), out->typed_data());
  });
  return ffi::Error::Success();
}

ffi::Error Backward(ffi::ThreadPool pool, Array x, Array weight1, Array bias1, Array weight2,
                    Array bias2, Array last, Array last_bias, Array first, Array second,
                    Array cotangents, Result by_first, Result by_second, Result by_x) {
  Mlp mlp = read(x, weight1, bias1, weight2, bias2, last, last_bias);
  share_rows(pool, mlp.rows, [&](int64_t begin, int64_t end) {
    mlp.backward(begin, end, first.typed_data(), second.typed_data(), cotangents.typed_data(),
                 by_first->typed_data(), by_second->typed_data(), by_x->typed_data());
  });
  return ffi::Error::Success();
}

auto arguments() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<Array>()                // inputs
      .Arg<Array>().Arg<Array>()   // first layer
      .Arg<Array>().Arg<Array>()   // second layer
      .Arg<Array>().Arg<Array>();  // last layer
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(mlp_forward, Forward,
                              arguments().Ret<Array>().Ret<Array>().Ret<Array>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    mlp_backward, Backward,
    arguments().Arg<Array>().Arg<Array>().Arg<Array>().Ret<Array>().Ret<Array>().Ret<Array>());
