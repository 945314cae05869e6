// Calls the C interface of the kernels under sanitizers: `make sanitize` compiles this with kernels/fedkeel.cpp, once
// for each sanitizer and instruction set, and fails if it does not return 0 or if a sanitizer reports something.
//
// Every vector lies in memory of exactly its size, so that whatever is read or written beside it is seen. What comes
// out is compared between in-place and not, between one thread and many, and between whole jobs and single gradients;
// that it is right is tested from Python.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "fedkeel.h"

static uint64_t state = 1;
static uint64_t drawn() {
  state += 0x9E3779B97F4A7C15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
static int below(int n) { return int(drawn() % uint64_t(n)); }
static double uniform() { return double(drawn() >> 11) / double(1ull << 53) - .5; }

static void demand(bool holds, const char* what) {
  if (holds) return;
  std::printf("it does not hold that %s\n", what);
  std::exit(1);
}

template <class T> std::vector<T> vector_of(long size, double scale) {
  std::vector<T> v(size);
  for (auto& each : v) each = T(scale * uniform());
  v.shrink_to_fit();
  return v;
}

// A chain that grows layer by layer, and the length of its vector of weights.
struct Model {
  std::vector<fk_layer> layers;
  int64_t size = 0;
  int channels, height, width;

  Model(int channels, int height, int width) : channels(channels), height(height), width(width) {}
  int features() const { return channels * height * width; }
  long sample() const { return long(layers[0].inputs) * layers[0].height * layers[0].width; }

  fk_layer& add(int kind, int outputs, int k, int pad, long weights, bool bias) {
    fk_layer d = {kind, channels, height, width, outputs, k, pad, 0, 0, -1, -1};
    if (weights) {
      d.weight = size;
      size += weights;
      if (bias) d.bias = size, size += outputs;
    }
    layers.push_back(d);
    channels = outputs;
    return layers.back();
  }
  Model& convolution(int outputs, int k, int pad, bool pool, bool relu, bool bias = true) {
    fk_layer& d = add(FK_CONVOLUTION, outputs, k, pad, long(outputs) * channels * k * k, bias);
    height += 2 * pad - k + 1, width += 2 * pad - k + 1;
    d.pool = pool && height > 1 && width > 1, d.relu = relu;
    if (d.pool) height /= 2, width /= 2;
    return *this;
  }
  Model& average(int k) {
    add(FK_AVERAGE, channels, k, 0, 0, false);
    height /= k, width /= k;
    return *this;
  }
  Model& linear(int outputs, bool relu, bool bias = true) {
    channels = features(), height = width = 1;
    add(FK_LINEAR, outputs, 0, 0, long(outputs) * channels, bias).relu = relu;
    return *this;
  }
};

template <class T> struct Check {
  const Model& model;
  std::vector<fk_network*> networks;

  Check(const Model& model, int threads, int batch) : model(model) {
    for (int i = 0; i < threads; i++) networks.push_back(made(batch));
  }
  ~Check() {
    for (auto each : networks) fk_free(each);
  }
  fk_network* made(int batch) {
    fk_network* one = fk_new(model.layers.data(), int(model.layers.size()), batch, model.size, sizeof(T));
    demand(one, "there is a network");
    return one;
  }
  std::vector<int64_t> labels(long count) {
    std::vector<int64_t> y(count);
    for (auto& each : y) each = below(model.features());
    return y;
  }

  // Large mini-batches come in parts, which are added up in another order where the weights must stay until the last.
  static bool equal(const std::vector<T>& one, const std::vector<T>& other, int b) {
    if (b <= 64) return one == other;
    double far = 0;
    for (size_t i = 0; i < one.size(); i++) far = std::max(far, double(std::abs(one[i] - other[i])));
    return far < (sizeof(T) == 4 ? 1e-3 : 1e-11);
  }

  // Clients of up to b samples, some of which may have none.
  void gradients(int k, int b) {
    const long D = model.size;
    const auto x = vector_of<T>(long(k) * b * model.sample(), 2);
    const auto y = labels(long(k) * b);
    std::vector<int64_t> sizes(k, b);
    for (int c = 1; c < k; c++) sizes[c] = below(b + 1);
    std::vector<double> scale(k, -.5);
    const auto w = vector_of<T>(k * D, .5), base = vector_of<T>(k * D, .5);
    std::vector<T> to(k * D), expected(k * D), losses(long(k) * b);
    std::vector<int64_t> which(long(k) * b);
    for (auto& each : which) each = below(k * b);
    const auto go = [&](int threads, const T* at, const T* from, T* into) {
      fk_gradients(networks.data(), threads, k, b, x.data(), y.data(), which.data(), sizes.data(), scale.data(), at, D,
                   from, D, into, D, losses.data());
    };
    go(1, w.data(), nullptr, expected.data());
    for (T each : expected) demand(std::isfinite(each), "gradients are finite");
    go(int(networks.size()), w.data(), nullptr, to.data());
    demand(to == expected, "threads change no bit of a gradient");
    to = w;
    go(1, to.data(), nullptr, to.data());
    demand(to == expected, "a gradient may be put where the weights were");
    go(1, w.data(), base.data(), to.data());
    auto again = base;
    go(int(networks.size()), w.data(), again.data(), again.data());
    demand(to == again, "a gradient may be added in place");
    again = w;
    go(1, w.data(), w.data(), to.data());
    go(1, again.data(), again.data(), again.data());
    demand(equal(to, again, b), "a step may be made in place");
    go(1, w.data(), base.data(), to.data());
    again = w;
    go(1, again.data(), base.data(), again.data());
    demand(equal(to, again, b), "a step from elsewhere may be put where the weights were");
    std::vector<T> one(w.begin(), w.begin() + D);  // shared by all
    fk_gradients(networks.data(), int(networks.size()), k, b, x.data(), y.data(), which.data(), sizes.data(),
                 scale.data(), one.data(), 0, one.data(), 0, to.data(), D, losses.data());
  }

  void run(int count, int batch, int most, bool offset, bool anchor, bool mask, fk_local local, bool idle = false) {
    const long D = model.size, n = most + 3, epochs = 2;
    const auto x = vector_of<T>(n * model.sample(), 2);
    const auto y = labels(n);
    std::vector<T> moving(mask ? D : 0);
    for (auto& each : moving) each = T(below(2));
    local.mask = mask ? moving.data() : nullptr;
    const auto start = vector_of<T>(D, .5), towards = vector_of<T>(D, .5), push = vector_of<T>(D, .1);
    const std::vector<double> rates = {.1, .05};
    std::vector<std::vector<int64_t>> orders(count);
    std::vector<std::vector<T>> w(count, std::vector<T>(D)), last = w, past = w, before;
    std::vector<fk_job> jobs(count);
    for (int round = 0; round < 2; round++) {
      state = 77;
      for (int c = 0; c < count; c++) {
        const long samples = 1 + below(most);
        orders[c].resize((epochs - 1) * (samples + 1) + samples);
        for (auto& each : orders[c]) each = below(int(n));
        jobs[c] = {.start = start.data(), .w = w[c].data(), .order = orders[c].data(), .samples = samples,
                   .next = samples + 1, .rates = rates.data(), .offset = offset ? push.data() : nullptr,
                   .anchor = anchor ? towards.data() : nullptr, .share = offset ? .7 : 1., .pull = .3,
                   .steps = 1 + below(int(epochs * ((samples + batch - 1) / batch))), .each = most, .batch = batch};
        if (c % 2) jobs[c].each = (jobs[c].steps + 1) / 2;
        if (idle) jobs[c].steps = 0;
        if (anchor) jobs[c].ascent = .1;
        if (offset) {
          jobs[c].first_last = push.data(), jobs[c].first_past = towards.data();
          jobs[c].last = last[c].data(), jobs[c].past = past[c].data();
          jobs[c].keep = .3, jobs[c].gain = .5, jobs[c].late = mask;
        }
        if (c % 3 == 2) w[c] = start, jobs[c].start = w[c].data();
      }
      fk_run(networks.data(), round ? int(networks.size()) : 1, x.data(), y.data(), jobs.data(), count, &local);
      for (const auto& job : jobs) demand(job.finite && job.seen >= job.steps && idle == !job.seen, "jobs are told as finite");
      if (round) demand(w == before, "threads change no bit of a job");
      before = w;
    }
  }

  void score(int count, int part) {
    const auto w = vector_of<T>(model.size, .5), x = vector_of<T>(count * model.sample(), 2);
    const auto y = labels(count);
    std::vector<int64_t> which(count);
    for (int i = 0; i < count; i++) which[i] = count - 1 - i;
    const int parts = (count + part - 1) / part;
    std::vector<int64_t> hits(parts), again(parts);
    std::vector<double> losses(parts), more(parts);
    fk_score(networks.data(), 1, w.data(), x.data(), y.data(), nullptr, count, part, hits.data(), losses.data());
    fk_score(networks.data(), int(networks.size()), w.data(), x.data(), y.data(), nullptr, count, part, again.data(), more.data());
    demand(hits == again && losses == more, "threads change no bit of a test");
    fk_score(networks.data(), int(networks.size()), w.data(), x.data(), y.data(), which.data(), count, part, again.data(), more.data());
    int64_t all = 0, others = 0;
    for (int i = 0; i < parts; i++) all += hits[i], others += again[i];
    demand(all == others, "the order of samples changes no hit");
  }
};

template <class T> static void every_filter() {
  const int sides[][2] = {{1, 1}, {4, 1}, {3, 2}, {6, 7}};
  for (int k = 1; k <= 7; k++)
    for (int pad = 0; pad <= k + 1; pad++)
      for (const auto& [height, width] : sides)
        for (int pool = 0; pool < 2; pool++) {
          if (std::min(height, width) + 2 * pad - k + 1 < 1 + pool) continue;
          Model model(1 + below(3), height, width);
          if (below(2)) model.convolution(1 + below(3), 1, below(2), false, below(2), below(2));
          model.convolution(1 + below(26), k, pad, pool, below(2), below(2));
          if (below(2) && std::min(model.height, model.width) >= 2) model.convolution(1 + below(4), 2, 1, below(2), below(2));
          model.linear(1 + below(5), false);
          const int b = 1 + below(below(4) ? 5 : 20);
          Check<T>(model, 2, b).gradients(2, b);
        }
}

// Chains of all kinds of layers, with tails of blocks, mini-batches that are filled up and such that come in parts.
template <class T> static void every_kind() {
  const int batches[] = {1, 3, 4, 7, 8, 9, 17, 64, 65, 130};
  for (int b : batches) {
    for (int classes : {1, 12}) {
      Model one(3 + below(70), 1, 1);
      one.linear(classes, false, below(2));
      Check<T>(one, 3, b).gradients(3, b);
      Model two(1, 5, 4);
      two.linear(1 + below(40), true).linear(1 + below(30), below(2), below(2)).linear(classes, false);
      Check<T>(two, 3, b).gradients(3, b);
      Model three(2, 7, 7);
      three.convolution(1 + below(9), 3, 1, true, true).average(1 + below(3)).linear(classes, false, false);
      Check<T>(three, 3, b).gradients(2, b);
      Model four(1, 6, 5);
      four.convolution(classes, 2, 0, below(2), false).average(2);  // its last layers have no weights, or filters
      Check<T>(four, 2, b).gradients(2, b);
      Model five(1, 6, 6);
      five.convolution(5, 3, 1, true, true).convolution(7, 3, 1, false, true).convolution(classes, 3, 0, false, false);
      Check<T>(five, 2, b).gradients(2, b);
    }
  }
  Model wide(1, 30, 30);  // more inputs than a first-level cache holds
  wide.linear(13, true).linear(900, true).linear(2, false);
  Check<T>(wide, 2, 70).gradients(2, 70);
  for (int outputs = 1; outputs <= 40; outputs++) {
    Model tails(2, 4, 3);
    tails.convolution(outputs, 2, 1, false, true).convolution(41 - outputs, 3, 1, true, true).linear(outputs, true).linear(3, false);
    Check<T>(tails, 1, 9).gradients(1, 9);
  }
}

template <class T> static void jobs_and_tests() {
  Model model(1, 6, 5);
  model.convolution(3, 3, 1, true, true).linear(7, true).linear(3, false);
  for (int batch : {1, 5, 64, 70}) {
    Check<T> check(model, 4, batch);
    for (int what = 0; what < 32; what++) {
      const fk_local local = {nullptr, what & 1 ? .01 : 0., what & 2 ? .5 : 0., what & 4 ? .9 : 0.};
      check.run(9, batch, batch == 1 ? 5 : batch + 12, what & 8, what & 16, what % 3 == 1, local);
    }
    check.run(40, batch, 7, false, false, false, {nullptr, 0, 0, 0});
    check.run(3, batch, 7, false, false, false, {nullptr, 0, 0, 0}, true);
    for (int count : {1, 2, 50, 131})
      for (int part : {1, 50, 131}) check.score(count, std::max(part, count / 20));
  }
}

template <class T> static void refusals() {
  Model fine(1, 4, 4);
  fine.convolution(2, 3, 0, false, true).linear(3, false);
  const auto refused = [&](auto change, int batch = 4) {
    Model other = fine;
    change(other);
    fk_network* made = fk_new(other.layers.data(), int(other.layers.size()), batch, other.size, sizeof(T));
    demand(!made, "what does not fit together is refused");
    fk_free(made);
  };
  refused([](Model& m) { m.size--; });
  refused([](Model& m) { m.layers[0].k = 8; });
  refused([](Model& m) { m.layers[0].k = 0; });
  refused([](Model& m) { m.layers[0].k = 5; });
  refused([](Model& m) { m.layers[0].pad = -1; });
  refused([](Model& m) { m.layers[0].weight = -1; });
  refused([](Model& m) { m.layers[1].inputs++; });
  refused([](Model& m) { m.layers[1].kind = 7; });
  refused([](Model& m) { m.layers[1].outputs = 0; });
  refused([](Model& m) { m.layers.clear(); });
  refused([](Model&) {}, 0);
}

// Rows that lie apart, all threads against one, and numbers that are too large.
template <class T> static void means() {
  for (int64_t k : {1, 3, 40})
    for (int64_t size : {1, 7, 512, 513, 1400}) {
      const int64_t next = size + 3;
      auto rows = vector_of<T>((k - 1) * next + size, 2);
      std::vector<double> shares(k, 0x1p26 / double(k)), one(2 * size), more(2 * size);
      demand(fk_mean(1, rows.data(), next, shares.data(), k, size, sizeof(T), &one[0], &one[size]), "all are sound");
      demand(fk_mean(5, rows.data(), next, shares.data(), k, size, sizeof(T), &more[0], &more[size]), "all are sound");
      demand(one == more, "threads change nothing");
      for (int64_t i = 0; i < size; i++) {
        double sum = 0;
        for (int64_t row = 0; row < k; row++) sum += double(rows[row * next + i]) / double(k);
        demand(std::abs(one[i] + one[size + i] - sum) < 1e-12, "both parts are the mean");
      }
      rows[(k - 1) * next + size - 1] = T(1e30);
      demand(!fk_mean(2, rows.data(), next, shares.data(), k, size, sizeof(T), &one[0], &one[size]), "it is too large");
      rows[(k - 1) * next + size - 1] = T(NAN);
      demand(!fk_mean(2, rows.data(), next, shares.data(), k, size, sizeof(T), &one[0], &one[size]), "it is no number");
    }
}

int main() {
  demand(fk_abi() == FK_ABI, "the interface is that of the header");
  fk_free(nullptr);
  every_filter<float>();
  every_filter<double>();
  every_kind<float>();
  every_kind<double>();
  jobs_and_tests<float>();
  jobs_and_tests<double>();
  refusals<float>();
  refusals<double>();
  means<float>();
  means<double>();
  return 0;
}
