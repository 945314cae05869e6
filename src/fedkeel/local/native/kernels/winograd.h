// 3x3 convolutions by Winograd's F(2x2, 3x3) (Lavin and Gray, 2016): 16 multiplications for 2x2 pixels instead of 36.
//
// A tile of 4x4 pixels d and a filter g are transformed; products of the transforms are summed over the input channels
// and transformed back:  y = A' [ (G g G') * (B' d B) ] A, with
//        | 1  0 -1  0 |        |  1   0   0 |
//   B' = | 0  1  1  0 |    G = | .5  .5  .5 |    A' = | 1  1  1  0 |
//        | 0 -1  1  0 |        | .5 -.5  .5 |         | 0  1 -1 -1 |
//        | 0  1  0 -1 |        |  0   0   1 |
// B and A only add and subtract, so all of it is done on vectors of samples, like everything else here.
#pragma once
#include "convolution.h"

namespace fedkeel {

template <class T> struct Winograd : Vectors<T> {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  static constexpr int OUTPUTS = SUMS / 4, TILES = 4;  // that are multiplied at once

  // Whether that is faster: transforming costs as much as a few channels.
  static bool suits(int inputs, int outputs, int k) { return k == 3 && std::min(inputs, outputs) >= 6; }
  static long scratch(int inputs, int outputs) { return 16L * TILES * (inputs + 1 + outputs + 1); }
  // From one of the 16 to the next, in packed weights. Here and in scratch there is a little more than is needed:
  // caches find it hard to hold 16 places whose distance is a power of two.
  static long stride(int inputs, int outputs) { return (long)inputs * outputs + 64 / sizeof(T); }

  // Weights as `Convolution::pack`, transformed: [16][outputs in blocks][inputs][block], with `stride`.
  static void pack(const T* w, int outputs, int inputs, T* to, bool turned = false) {
    const long next_one = stride(inputs, outputs);
    in_blocks<OUTPUTS>(outputs, [&](auto n, int first) {
      constexpr int N = decltype(n)::value;
      for (int c = 0; c < inputs; c++)
        for (int o = 0; o < N; o++) {
          const T* g = turned ? w + ((long)c * outputs + first + o) * 9 + 8 : w + ((long)(first + o) * inputs + c) * 9;
          const int step = turned ? -1 : 1;
          T half[4][3];
          for (int j = 0; j < 3; j++) {
            const T a = g[j * step], b = g[(3 + j) * step], d = g[(6 + j) * step];
            half[0][j] = a;
            half[1][j] = (a + b + d) * T(.5);
            half[2][j] = (a - b + d) * T(.5);
            half[3][j] = d;
          }
          T* at = to + (long)first * inputs + c * N + o;
          for (int i = 0; i < 4; i++) {
            const T a = half[i][0], b = half[i][1], d = half[i][2];
            at[(4 * i) * next_one] = a;
            at[(4 * i + 1) * next_one] = (a + b + d) * T(.5);
            at[(4 * i + 2) * next_one] = (a - b + d) * T(.5);
            at[(4 * i + 3) * next_one] = d;
          }
        }
    });
  }

  // As `Convolution::correlate`; `memory` is for `scratch` vectors.
  template <class Put>
  static void correlate(const Correlation& d, const V* x, const T* packed, const T* bias, V* memory, Put put) {
    V *seen = memory, *sums = memory + 16L * TILES * (d.inputs + 1);  // transforms: [16][channel][tile]
    for (int ii = 0; ii < d.height; ii += 2) {
      const int i = std::max(0, std::min(ii, d.height - 2));
      in_blocks<TILES>((d.width + 1) / 2, [&](auto n, int first) {
        constexpr int N = decltype(n)::value;
        const auto column = [&](int tile) { return std::max(0, std::min(2 * (first + tile), d.width - 2)); };
        for (int c = 0; c < d.inputs; c++)
          for (int t = 0; t < N; t++)
            look(x + c * d.x.channel + i * d.x.row + column(t), d.x.row, seen + c * N + t, (d.inputs + 1L) * N);
        multiply<N>(d, seen, packed, sums);
        for (int o = 0; o < d.outputs; o++)
          for (int t = 0; t < N; t++) {
            V four[4];
            back(sums + o * N + t, (d.outputs + 1L) * N, Q::all(bias ? bias[o] : T(0)), four);
            put(o, i, column(t), four);
          }
      });
    }
  }

  // B' d B
  FK_INLINE void look(const V* x, long row, V* to, long next) {
    V half[4][4];
    FK_UNROLL for (int j = 0; j < 4; j++) {
      const V a = x[j], b = x[row + j], c = x[2 * row + j], d = x[3 * row + j];
      half[0][j] = a - c, half[1][j] = b + c, half[2][j] = c - b, half[3][j] = b - d;
    }
    FK_UNROLL for (int i = 0; i < 4; i++) {
      const V a = half[i][0], b = half[i][1], c = half[i][2], d = half[i][3];
      to[(4 * i) * next] = a - c, to[(4 * i + 1) * next] = b + c;
      to[(4 * i + 2) * next] = c - b, to[(4 * i + 3) * next] = b - d;
    }
  }

  // A' m A, and the bias
  FK_INLINE void back(const V* m, long next, V bias, V (&y)[4]) {
    V half[2][4];
    FK_UNROLL for (int j = 0; j < 4; j++) {
      const V a = m[j * next], b = m[(4 + j) * next], c = m[(8 + j) * next], d = m[(12 + j) * next];
      half[0][j] = a + b + c, half[1][j] = b - c - d;
    }
    FK_UNROLL for (int i = 0; i < 2; i++) {
      y[2 * i] = half[i][0] + half[i][1] + half[i][2] + bias;
      y[2 * i + 1] = half[i][1] - half[i][2] - half[i][3] + bias;
    }
  }

  template <int S> static void multiply(const Correlation& d, const V* seen, const T* packed, V* sums) {
    for (int p = 0; p < 16; p++) {
      in_blocks<OUTPUTS>(d.outputs, [&](auto n, int first) {
        constexpr int N = decltype(n)::value;
        const T* q = packed + (long)first * d.inputs;
        const V* v = seen;
        V sum[N][S] = {};
        for (int c = 0; c < d.inputs; c++, q += N, v += S) {
          V s[N];
          FK_APART;
          FK_UNROLL for (int o = 0; o < N; o++) s[o] = Q::all(q[o]);
          FK_UNROLL for (int t = 0; t < S; t++) {
            const V one = v[t];
            FK_UNROLL for (int o = 0; o < N; o++) sum[o][t] += s[o] * one;
          }
        }
        FK_UNROLL for (int o = 0; o < N; o++)
          FK_UNROLL for (int t = 0; t < S; t++) sums[(first + o) * S + t] = sum[o][t];
      });
      seen += (d.inputs + 1) * S;
      sums += (d.outputs + 1) * S;
      packed += stride(d.inputs, d.outputs);
    }
  }
};

}  // namespace fedkeel
