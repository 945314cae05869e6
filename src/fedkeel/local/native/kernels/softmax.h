// Softmax cross-entropy of samples in lanes.
#pragma once
#include "vectors.h"

namespace fedkeel {

template <class T> struct Softmax : Vectors<T> {
  typedef Vectors<T> Q;
  typedef typename Q::V V;
  typedef typename Q::I I;
  static constexpr int L = Q::L;

  // Of `some` samples, the first lanes: the losses, and in place of the logits z [classes] the gradient of `scale`
  // times their sum, which is zero in the other lanes.
  static void backward(V* z, int classes, const int64_t* labels, int some, T scale, T* losses) {
    V most = z[0], sum = {}, share = {};
    for (int o = 1; o < classes; o++) most = z[o] > most ? z[o] : most;
    T own[L] = {};
    for (int l = 0; l < some; l++) own[l] = z[labels[l]][l] - most[l];
    for (int o = 0; o < classes; o++) sum += z[o] = Q::exponential(z[o] - most);
    for (int l = 0; l < some; l++) share[l] = scale / sum[l];
    const I real = Q::first(some);
    for (int o = 0; o < classes; o++) z[o] = real ? z[o] * share : V{};
    for (int l = 0; l < some; l++) {
      z[labels[l]][l] -= scale;
      losses[l] = std::log(sum[l]) - own[l];
    }
  }

  // Of `some` samples: the losses added to `loss`, and to `hits` those whose label has the largest logit.
  static void score(const V* z, int classes, const int64_t* labels, int some, double& loss, int64_t& hits) {
    V most = z[0], sum = {};
    I best = {};
    for (int o = 1; o < classes; o++) {
      const I more = (z[o] > most) | ((z[o] != z[o]) & (most == most));  // what is not a number counts as largest
      most = more ? z[o] : most;
      best = more ? best * 0 + o : best;
    }
    for (int o = 0; o < classes; o++) sum += Q::exponential(z[o] - most);
    for (int l = 0; l < some; l++) {
      loss += std::log(sum[l]) - (z[labels[l]][l] - most[l]);
      hits += best[l] == labels[l];
    }
  }
};

}  // namespace fedkeel
