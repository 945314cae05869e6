// A chain of layers, forward and backward, for one mini-batch of one client.
//
// Samples lie in the lanes of vectors: a mini-batch of 32 is two batches of 16 lanes, or four of 8. Every layer reads
// its input where the layer before has put it, with the zeros around it that its convolution needs.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "convolution.h"
#include "fedkeel.h"
#include "linear.h"
#include "softmax.h"
#include "winograd.h"

namespace fedkeel {

// Samples that go through a network together; larger mini-batches come in parts, so that the workspace stays small.
constexpr int TOGETHER = 64;

template <class T> class Network {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  typedef typename Q::I I;
  static constexpr int L = Q::L;

  struct Layer : fk_layer {
    int rows, columns;        // before pooling
    int out_rows, out_columns;
    Strides in;               // of its input, with padding
    long in_size, out_size;   // vectors of a batch: of its input with padding, of its output without
    V* input;                 // [batches][in_size]
    V* d_input;               // gradient in the input, without padding; null for the first layer
    // Of convolutions:
    I* choice;                // [batches][out_size], which of four pixels the max-pool took; -1 where the ReLU is 0
    V* spread;                // gradient before the pool and the ReLU, padded for the way back
    int border;               // zeros around it that the way back needs; negative: pixels to leave out
    Strides out;              // of `spread`
    long spread_size;
    bool winograd;
    T *packed, *turned;       // weights as `correlate` reads them

    bool convolves() const { return kind == FK_CONVOLUTION; }
    // Of the first layer: whether it reads samples where they lie, which pays where few outputs need them in lanes.
    bool reads_rows() const { return kind == FK_LINEAR && outputs <= 32; }
    long features() const { return (long)outputs * out_rows * out_columns; }
  };

  struct Freed {
    void operator()(void* p) const { free(p); }
  };
  std::vector<std::unique_ptr<void, Freed>> memory;
  std::vector<Layer> layers;
  std::vector<const T*> rows;   // the current samples, then the last one again up to a whole number of batches
  std::vector<const T*> inner;  // the same samples as an inner layer sees them
  std::vector<int64_t> labels;
  V *logits, *transformed, *partial;
  T *by_sample, *turned_rows, *scratch;
  int classes, together;

 public:
  const long size;    // D
  long sample = 0;    // numbers

  // Memory that begins with a line of it and ends with the network.
  template <class X> X* make(long count) {
    const size_t bytes = (count * sizeof(X) + 64 * sizeof(V) + 63) / 64 * 64;
    void* p = aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    memory.emplace_back(p);
    memset(p, 0, bytes);
    return (X*)p;
  }

  Network(const fk_layer* given, int count, int batch, long size) : size(size) {
    if (!fit(given, count, batch, size)) throw std::invalid_argument("layers");
    together = std::min(batch, TOGETHER);
    const int batches = (together + L - 1) / L;
    long widest = 0, transforms = 0;
    for (int l = 0; l < count; l++) {
      Layer d = {};
      (fk_layer&)d = given[l];
      const int around = d.convolves() ? 2 * d.pad : 0;
      d.in = {d.width + around, (long)(d.width + around) * (d.height + around)};
      d.in_size = d.inputs * d.in.channel;
      d.rows = d.columns = d.out_rows = d.out_columns = 1;
      if (d.convolves()) {
        d.rows = d.height + around - d.k + 1, d.columns = d.width + around - d.k + 1;
        d.out_rows = d.pool ? d.rows / 2 : d.rows, d.out_columns = d.pool ? d.columns / 2 : d.columns;
        d.border = d.k - 1 - d.pad;
        const int zeros = 2 * std::max(0, d.border);
        d.out = {d.columns + zeros, (long)(d.columns + zeros) * (d.rows + zeros)};
        d.spread_size = d.outputs * d.out.channel;
      } else if (d.kind == FK_AVERAGE) {
        d.rows = d.out_rows = d.height / d.k, d.columns = d.out_columns = d.width / d.k;
      }
      d.out_size = d.features();
      // One more row than there is: the last tile of an image of one row looks there.
      if (l || !d.reads_rows()) d.input = make<V>(batches * d.in_size + 2 * d.in.row);
      d.d_input = l ? make<V>(batches * (long)d.inputs * d.height * d.width) : nullptr;
      if (d.convolves()) {
        d.choice = d.pool ? make<I>(batches * d.out_size) : nullptr;
        d.spread = make<V>(batches * d.spread_size + 2 * d.out.row);
        d.winograd = Winograd<T>::suits(d.inputs, d.outputs, d.k);
        const long weights =
            d.winograd ? 16 * Winograd<T>::stride(d.inputs, d.outputs) : (long)d.outputs * d.inputs * d.k * d.k;
        d.packed = make<T>(weights);
        d.turned = l ? make<T>(weights) : nullptr;
        if (d.winograd) transforms = std::max(transforms, Winograd<T>::scratch(d.inputs, d.outputs));
      } else {
        widest = std::max<long>(widest, std::max(d.inputs, d.outputs));
      }
      layers.push_back(d);
    }
    const Layer &first = layers.front(), &last = layers.back();
    sample = (long)first.inputs * first.height * first.width;
    classes = last.features();
    logits = make<V>(batches * (long)classes);
    by_sample = make<T>(widest * batches * L);
    turned_rows = make<T>(widest * batches * L);
    transformed = make<V>(transforms);
    partial = make<V>(first.reads_rows() ? (long)first.outputs * L : 0);
    scratch = make<T>((long)Linear<T>::COLUMNS * together);
    rows.resize(batches * L);
    inner.resize(batches * L);
    labels.resize(batches * L);
  }

  // to = base + scale times the gradient of the summed losses at w of b samples, whose `x` and `y` the caller tells by
  // number; base may be null (zeros) or `to`, and for up to `TOGETHER` samples `to` may be w. Puts each sample's loss
  // into `losses`.
  template <class Which>
  void gradient(const T* w, const T* x, const int64_t* y, Which which, int b, T scale, const T* base, T* to,
                T* losses) {
    for (int at = 0; at < b; at += together, base = to) {
      const int some = std::min(together, b - at);
      take(x, y, some, [&](int i) { return which(at + i); });
      forward(w, some);
      for (int i = 0; i < some; i += L)
        Softmax<T>::backward(logits + i / L * (long)classes, classes, &labels[i], std::min(L, some - i), scale,
                             losses + at + i);
      backward(w, some, base, to);
    }
  }

  template <class Which>
  void score(const T* w, const T* x, const int64_t* y, Which which, int b, double& loss, int64_t& hits) {
    for (int at = 0; at < b; at += together) {
      const int some = std::min(together, b - at);
      take(x, y, some, [&](int i) { return which(at + i); });
      forward(w, some);
      for (int i = 0; i < some; i += L)
        Softmax<T>::score(logits + i / L * (long)classes, classes, &labels[i], std::min(L, some - i), loss, hits);
    }
  }

 private:
  static bool fit(const fk_layer* given, int count, int batch, long size) {
    long features = -1;  // of the layer before
    for (int l = 0; l < count; l++) {
      const fk_layer& d = given[l];
      const bool convolves = d.kind == FK_CONVOLUTION, averages = d.kind == FK_AVERAGE;
      if (std::min({d.inputs, d.height, d.width, d.outputs}) < 1 || d.pad < 0) return false;
      const long seen = (long)d.inputs * d.height * d.width;
      long rows = 1, columns = 1;
      if (convolves) {
        rows = (d.height + 2L * d.pad - d.k + 1) / (d.pool ? 2 : 1);
        columns = (d.width + 2L * d.pad - d.k + 1) / (d.pool ? 2 : 1);
        if (d.k < 1 || d.k > 7) return false;
      } else if (averages) {
        if (d.k < 1 || d.outputs != d.inputs || d.pool || d.relu || !l) return false;
        rows = d.height / d.k, columns = d.width / d.k;
      } else if (d.kind != FK_LINEAR || d.height != 1 || d.width != 1 || d.pool) {
        return false;
      }
      if (rows < 1 || columns < 1 || (l && seen != features)) return false;
      const long weights = averages ? 0 : (long)d.outputs * d.inputs * (convolves ? d.k * d.k : 1);
      if (!averages && (d.weight < 0 || d.weight + weights > size || d.bias + d.outputs > size)) return false;
      features = d.outputs * rows * columns;
    }
    return count > 0 && batch > 0;
  }

  template <class Which> void take(const T* x, const int64_t* y, int some, Which which) {
    // Lanes that are left over repeat the last sample: of zeros, something could overflow that does not otherwise.
    for (int i = 0; i < (some + L - 1) / L * L; i++) {
      rows[i] = x + which(std::min(i, some - 1)) * sample;
      labels[i] = i < some ? y[which(i)] : 0;
    }
  }

  static int batches(int some) { return (some + L - 1) / L; }
  // Where layer l puts its output: into the next one's input, inside the padding.
  V* output(int l, int s) {
    if (l + 1 == (int)layers.size()) return logits + s * (long)classes;
    const Layer& next = layers[l + 1];
    const int pad = next.convolves() ? next.pad : 0;
    return next.input + s * next.in_size + pad * next.in.row + pad;
  }
  Strides output_strides(int l) const {
    const Layer& d = layers[l];
    if (l + 1 < (int)layers.size() && layers[l + 1].kind != FK_LINEAR) return layers[l + 1].in;
    return {d.out_columns, (long)d.out_rows * d.out_columns};
  }
  V* d_output(int l) { return l + 1 < (int)layers.size() ? layers[l + 1].d_input : logits; }
  static const T* bias(const Layer& d, const T* w) { return d.bias < 0 ? nullptr : w + d.bias; }

  // Forward.

  void forward(const T* w, int some) {
    const int count = batches(some);
    if (!layers[0].reads_rows()) gather(count);
    for (int l = 0; l < (int)layers.size(); l++) {
      Layer& d = layers[l];
      if (d.convolves()) {
        pack(d, w + d.weight, d.outputs, d.inputs, d.packed, false);
        for (int s = 0; s < count; s++) convolve(l, w, s);
      } else if (d.kind == FK_AVERAGE) {
        for (int s = 0; s < count; s++) average(l, s);
      } else {
        V* to = output(l, 0);
        if (!l && d.reads_rows())
          for (int s = 0; s < count; s++)
            Linear<T>::dots(w + d.weight, &rows[s * L], std::min(L, some - s * L), bias(d, w), output(l, s), d.outputs,
                            d.inputs, partial);
        else
          Linear<T>::product({d.outputs, d.inputs, count, d.inputs, 1, d.in_size, output(l, 1) - to}, w + d.weight,
                             d.input, bias(d, w), to);
        if (d.relu)
          for (long i = 0; i < count * (long)d.outputs; i++) to[i] = to[i] < V{} ? V{} : to[i];
      }
    }
  }

  void gather(int count) {
    const Layer& d = layers[0];
    const int pad = d.convolves() ? d.pad : 0;
    for (int s = 0; s < count; s++) {
      V* to = d.input + s * d.in_size + pad * d.in.row + pad;
      if (!pad) {
        Q::side_by_side(&rows[s * L], sample, to);
        continue;
      }
      const T* line[L];
      for (int c = 0; c < d.inputs; c++)
        for (int i = 0; i < d.height; i++) {
          for (int l = 0; l < L; l++) line[l] = rows[s * L + l] + ((long)c * d.height + i) * d.width;
          Q::side_by_side(line, d.width, to + c * d.in.channel + i * d.in.row);
        }
    }
  }

  static void pack(const Layer& d, const T* w, int outputs, int inputs, T* to, bool turned) {
    if (d.winograd) Winograd<T>::pack(w, outputs, inputs, to, turned);
    else Convolution<T>::pack(w, outputs, inputs, d.k, to, turned);
  }
  template <class Put>
  void correlate(const Layer& d, const Correlation& c, const V* x, const T* packed, const T* bias, Put put) {
    if (d.winograd) Winograd<T>::correlate(c, x, packed, bias, transformed, put);
    else Convolution<T>::correlate(c, x, packed, bias, put);
  }

  void convolve(int l, const T* w, int s) {
    const Layer& d = layers[l];
    V* y = output(l, s);
    const Strides to = output_strides(l);
    const V zero = {};
    Correlation c = {d.inputs, d.outputs, d.k, d.rows, d.columns, d.in, d.pad, d.pad, d.height, d.width};
    if (d.pool) {
      I* choice = d.choice + s * d.out_size;
      c.height = 2 * d.out_rows, c.width = 2 * d.out_columns;
      correlate(d, c, d.input + s * d.in_size, d.packed, bias(d, w), [&](int o, int i, int j, const V* sums) {
        V most = sums[0];
        I which = {};
        FK_UNROLL for (int n = 1; n < 4; n++) {
          const I more = (sums[n] > most) | (sums[n] != sums[n]);  // as PyTorch: what is not a number wins
          most = more ? sums[n] : most;
          which = more ? which * 0 + n : which;
        }
        if (d.relu) {
          which |= most <= zero;
          most = most < zero ? zero : most;
        }
        y[o * to.channel + i / 2 * to.row + j / 2] = most;
        choice[((long)o * d.out_rows + i / 2) * d.out_columns + j / 2] = which;
      });
    } else {
      correlate(d, c, d.input + s * d.in_size, d.packed, bias(d, w), [&](int o, int i, int j, const V* sums) {
        FK_UNROLL for (int n = 0; n < 4; n++)
          if (i + n / 2 < d.rows && j + n % 2 < d.columns)
            y[o * to.channel + (i + n / 2) * to.row + j + n % 2] = d.relu ? (sums[n] < zero ? zero : sums[n]) : sums[n];
      });
    }
  }

  void average(int l, int s) {
    const Layer& d = layers[l];
    const V* x = d.input + s * d.in_size;
    V* y = output(l, s);
    const Strides to = output_strides(l);
    for (int c = 0; c < d.inputs; c++)
      for (int i = 0; i < d.out_rows; i++)
        for (int j = 0; j < d.out_columns; j++) {
          V sum = {};
          for (int a = 0; a < d.k; a++)
            for (int b = 0; b < d.k; b++) sum += x[c * d.in.channel + (i * d.k + a) * d.in.row + j * d.k + b];
          y[c * to.channel + i * to.row + j] = sum / T(d.k * d.k);
        }
  }

  // Backward.

  void backward(const T* w, int some, const T* base, T* to) {
    for (int l = layers.size() - 1; l >= 0; l--) {
      const Layer& d = layers[l];
      if (d.convolves()) convolution_backward(l, w, batches(some), base, to);
      else if (d.kind == FK_AVERAGE) average_backward(l, batches(some));
      else linear_backward(l, w, some, base, to);
    }
  }

  void linear_backward(int l, const T* w, int some, const T* base, T* to) {
    const Layer& d = layers[l];
    const int count = batches(some);
    V* g = d_output(l);
    if (d.relu) {
      const V* y = output(l, 0);
      for (long i = 0; i < count * (long)d.outputs; i++) g[i] = y[i] <= V{} ? V{} : g[i];
    }
    if (l)
      Linear<T>::product({d.inputs, d.outputs, count, 1, d.inputs, d.outputs, d.inputs}, w + d.weight, g, nullptr,
                         d.d_input);
    const I real = Q::first(some - (count - 1) * L);  // lanes of the last batch
    for (int o = 0; o < d.outputs; o++) {
      V sum = {}, *row = (V*)by_sample + (long)o * count;
      for (int s = 0; s < count; s++) row[s] = g[s * (long)d.outputs + o];
      for (int s = 0; s < count - 1; s++) sum += row[s];
      sum += real ? row[count - 1] : V{};
      if (d.bias >= 0) to[d.bias + o] = (base ? base[d.bias + o] : T(0)) + Q::sum(sum);
    }
    const T* const* seen = rows.data();  // the first layer's input lies in the data
    if (l) {
      for (int s = 0; s < count; s++)
        Q::apart(d.input + s * d.in_size, d.inputs, turned_rows + s * L * (long)d.inputs, d.inputs);
      for (int i = 0; i < some; i++) inner[i] = turned_rows + i * (long)d.inputs;
      seen = inner.data();
    }
    Linear<T>::outer(by_sample, some, count * L, seen, base ? base + d.weight : nullptr, to + d.weight, d.outputs,
                     d.inputs, scratch);
  }

  void convolution_backward(int l, const T* w, int count, const T* base, T* to) {
    const Layer& d = layers[l];
    const long weights = (long)d.outputs * d.inputs * d.k * d.k;
    if (l) pack(d, w + d.weight, d.inputs, d.outputs, d.turned, true);
    start_from(base, to, d.weight, weights);
    if (d.bias >= 0) start_from(base, to, d.bias, d.outputs);
    for (int s = 0; s < count; s++) spread(l, s, d.bias < 0 ? nullptr : to + d.bias);
    const int zeros = std::max(0, d.border), aside = std::max(0, -d.border);
    if (l) {
      const Correlation c = {d.outputs, d.inputs, d.k, d.height, d.width, d.out, d.border, d.border, d.rows, d.columns};
      for (int s = 0; s < count; s++) {
        V* dx = d.d_input + s * (long)d.inputs * d.height * d.width;
        correlate(d, c, d.spread + s * d.spread_size + aside * d.out.row + aside, d.turned, nullptr,
                                  [&](int o, int i, int j, const V* sums) {
                                    FK_UNROLL for (int n = 0; n < 4; n++)
                                      if (i + n / 2 < d.height && j + n % 2 < d.width)
                                        dx[((long)o * d.height + i + n / 2) * d.width + j + n % 2] = sums[n];
                                  });
      }
    }
    Convolution<T>::filter_gradient({d.inputs, d.outputs, d.k, d.pad, d.rows, d.columns, d.height, d.in, d.out, count,
                                     d.in_size, d.spread_size},
                                    d.input, d.spread + zeros * d.out.row + zeros, to + d.weight);
  }

  static void start_from(const T* base, T* to, long first, long count) {
    if (!base) memset(to + first, 0, count * sizeof(T));
    else if (base != to) memcpy(to + first, base + first, count * sizeof(T));
  }

  // The gradient before pool and ReLU; its sum over pixels and samples is the bias's.
  void spread(int l, int s, T* d_bias) {
    const Layer& d = layers[l];
    const int zeros = std::max(0, d.border);
    const V *g = d_output(l) + s * d.out_size, *y = output(l, s);
    const Strides of_y = output_strides(l);
    for (int o = 0; o < d.outputs; o++) {
      V sum = {}, *to = d.spread + s * d.spread_size + o * d.out.channel + zeros * d.out.row + zeros;
      for (int i = 0; i < d.out_rows; i++)
        for (int j = 0; j < d.out_columns; j++) {
          const long at = ((long)o * d.out_rows + i) * d.out_columns + j;
          if (d.pool) {
            const I which = d.choice[s * d.out_size + at];
            V* four = to + 2 * i * d.out.row + 2 * j;
            FK_UNROLL for (int n = 0; n < 4; n++) four[n / 2 * d.out.row + n % 2] = which == n ? g[at] : V{};
            sum += which >= 0 ? g[at] : V{};
          } else {
            const V one = d.relu ? (y[o * of_y.channel + i * of_y.row + j] <= V{} ? V{} : g[at]) : g[at];
            to[i * d.out.row + j] = one;
            sum += one;
          }
        }
      if (d_bias) d_bias[o] += Q::sum(sum);
    }
  }

  void average_backward(int l, int count) {
    const Layer& d = layers[l];
    const T share = T(1) / (d.k * d.k);
    for (int s = 0; l && s < count; s++) {
      const V* g = d_output(l) + s * d.out_size;
      V* dx = d.d_input + s * (long)d.inputs * d.height * d.width;
      for (int c = 0; c < d.inputs; c++)
        for (int i = 0; i < d.out_rows * d.k; i++)
          for (int j = 0; j < d.out_columns * d.k; j++)
            dx[((long)c * d.height + i) * d.width + j] =
                g[((long)c * d.out_rows + i / d.k) * d.out_columns + j / d.k] * share;
    }
  }
};

}  // namespace fedkeel
