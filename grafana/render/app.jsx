// Draws one dashboard, window.DATA, with Grafana's own components, and says in window.DRAWN what became of each panel.
//
// DATA: {dashboard, results, from, to, step, light, width}; results are Prometheus' answers by "panel id:refId", times in
// seconds. Grafana's: panels' frames, stat, time series, table, field overrides, mappings, thresholds, units,
// transformations. Not Grafana's: the grid and its rows, state timeline, status history, heat map and bar gauge.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dataLinksOverrideProcessor, FieldConfigOptionsRegistry, FieldType,
  getFieldDisplayValues, identityOverrideProcessor, numberOverrideProcessor, standardFieldConfigEditorRegistry,
  standardTransformers, standardTransformersRegistry, stringOverrideProcessor, ThemeContext,
  thresholdsOverrideProcessor, toDataFrame, transformDataFrame, unitOverrideProcessor, valueMappingsOverrideProcessor,
  VizOrientation,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, Table, TimeSeries, VizRepeater } from '@grafana/ui';

const DATA = window.DATA;
const CELL = (DATA.width - 8) / 24;
const ROW = 38;
const DRAWN = (window.DRAWN = {});

const theme = createTheme({ colors: { mode: DATA.light ? 'light' : 'dark' } });
const asIs = (text) => text;

const option = (path, process, isCustom) => ({
  id: isCustom ? `custom.${path}` : path, path, isCustom, name: path, process, shouldApply: () => true, settings: {},
  override: () => null, editor: () => null, getItemsCount: () => 0,
});
const standard = () => [
  option('unit', unitOverrideProcessor), option('min', numberOverrideProcessor), option('max', numberOverrideProcessor),
  option('decimals', numberOverrideProcessor), option('displayName', stringOverrideProcessor),
  option('color', identityOverrideProcessor), option('noValue', stringOverrideProcessor),
  option('links', dataLinksOverrideProcessor), option('mappings', valueMappingsOverrideProcessor),
  option('thresholds', thresholdsOverrideProcessor),
];
const custom = ['align', 'fillOpacity', 'lineWidth', 'inspect', 'lineInterpolation', 'drawStyle', 'showPoints', 'pointSize',
  'thresholdsStyle', 'axisPlacement', 'axisSoftMin', 'axisSoftMax', 'spanNulls', 'stacking', 'width', 'cellOptions', 'hidden']
  .map((path) => option(path, identityOverrideProcessor, true));
standardFieldConfigEditorRegistry.setInit(standard);
// Grafana lists some of its transformers twice.
const transformers = new Map(Object.values(standardTransformers).map((each) => [
  each.id, { id: each.id, transformation: each, name: each.name, editor: () => null },
]));
standardTransformersRegistry.setInit(() => [...transformers.values()]);
const registry = new FieldConfigOptionsRegistry(() => [...standard(), ...custom]);

function legend(target, labels) {
  if (target.legendFormat) return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');
  const pairs = Object.entries(labels).filter(([name]) => name !== '__name__');
  return `${labels.__name__ || ''}{${pairs.map(([name, value]) => `${name}="${value}"`).join(', ')}}`;
}

function table(target, series, many) {
  const names = [...new Set(series.flatMap((each) => Object.keys(each.metric)))].sort();
  const numbers = series.map((each) => Number((each.value || each.values.at(-1))[1]));
  const texts = names.map((name) => (
    { name, type: FieldType.string, config: { filterable: true }, values: series.map((each) => each.metric[name] ?? '') }));
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: series.map(() => DATA.to * 1000) }, ...texts,
      { name: many ? `Value #${target.refId}` : 'Value', type: FieldType.number, values: numbers },
    ],
  });
}

function line(target, { metric, values, value }) {
  const points = values || [value];
  const name = legend(target, metric);
  const labels = Object.fromEntries(Object.entries(metric).filter(([label]) => label !== '__name__'));
  return toDataFrame({
    refId: target.refId,
    name,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map((point) => point[0] * 1000) },
      { name: 'Value', type: FieldType.number, labels, config: { displayNameFromDS: name },
        values: points.map((point) => Number(point[1])) },
    ],
  });
}

function frames(panel) {
  return panel.targets.flatMap((target) => {
    const series = DATA.results[`${panel.id}:${target.refId}`] || [];
    if (target.format === 'table') return [table(target, series, panel.targets.length > 1)];
    return series.map((each) => line(target, each));
  });
}

const numberOf = (frame) => frame.fields.find((field) => field.type === FieldType.number);
const timeOf = (frame) => frame.fields.find((field) => field.type === FieldType.time);

function Stat({ panel, data, width, height }) {
  const { reduceOptions, colorMode, justifyMode, textMode, wideLayout, orientation, text } = panel.options;
  const calcs = reduceOptions.calcs?.length ? reduceOptions.calcs : ['lastNotNull'];
  const values = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: { ...reduceOptions, calcs }, replaceVariables: asIs, theme, data,
    sparkline: false, timeZone: 'browser',
  });
  return (
    <VizRepeater
      getValues={() => values} getAlignmentFactors={() => ({ title: '', text: '' })} width={width} height={height}
      source={data} itemSpacing={3} autoGrid={true} orientation={orientation || VizOrientation.Auto} renderCounter={0}
      renderValue={({ value, width: w, height: h, count }) => (
        <BigValue
          value={value.display} count={count} width={w} height={h} colorMode={colorMode} graphMode="none"
          justifyMode={justifyMode} textMode={textMode} theme={theme} wideLayout={wideLayout} text={text}
        />)}
    />
  );
}

// State timeline, status history and heat map: a row of coloured cells for each series.
function Cells({ data, width, height }) {
  const high = Math.max(3, (height - 30) / Math.max(1, data.length));
  const place = (time) => 110 + ((time / 1000 - DATA.from) / (DATA.to - DATA.from)) * (width - 120);
  return (
    <svg width={width} height={height} style={{ font: '11px Inter,sans-serif' }}>
      {data.map((frame, number) => {
        const field = numberOf(frame);
        const times = timeOf(frame).values;
        return (
          <g key={number}>
            {high >= 9 && (
              <text x={104} y={number * high + high * 0.65} fill={theme.colors.text.primary} textAnchor="end">
                {field.config.displayNameFromDS}
              </text>)}
            {times.map((time, index) => {
              const next = times[index + 1] - time <= 2000 * DATA.step ? times[index + 1] : time + 1000 * DATA.step;
              const wide = Math.max(1, place(next) - place(time) + 0.5);
              const { color } = field.display(field.values[index]);
              return <rect key={index} x={place(time)} y={number * high} width={wide} height={high * 0.9} fill={color} opacity={0.75} />;
            })}
          </g>);
      })}
    </svg>
  );
}

function Bars({ panel, data, width, height }) {
  const calcs = ['lastNotNull'];
  const values = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: { ...panel.options.reduceOptions, calcs }, replaceVariables: asIs,
    theme, data, sparkline: false, timeZone: 'browser',
  });
  const most = Math.max(...values.map(({ display }) => display.numeric), 1e-9);
  const high = Math.min(28, height / values.length);
  return (
    <svg width={width} height={height} style={{ font: '12px Inter,sans-serif' }}>
      {values.map(({ display }, number) => (
        <g key={number}>
          <text x={0} y={number * high + high * 0.65} fill={theme.colors.text.primary}>{display.title}</text>
          <rect
            x={width * 0.35} y={number * high + 3} height={high - 6} fill={display.color}
            width={Math.max(1, (width * 0.45 * display.numeric) / most)}
          />
          <text x={width} y={number * high + high * 0.65} fill={theme.colors.text.primary} textAnchor="end">
            {`${display.prefix ?? ''}${display.text}${display.suffix ?? ''}`}
          </text>
        </g>))}
    </svg>
  );
}

function Graph({ panel, data, width, height }) {
  const moment = (seconds) => ({ valueOf: () => seconds * 1000 });
  const timeRange = { from: moment(DATA.from), to: moment(DATA.to), raw: { from: 'now-15m', to: 'now' } };
  return (
    <TimeSeries
      frames={data} structureRev={1} theme={theme} timeRange={timeRange} timeZone="browser" width={width} height={height}
      legend={panel.options.legend} options={panel.options}
    >
      {() => null}
    </TimeSeries>
  );
}

const KINDS = {
  stat: Stat, 'state-timeline': Cells, 'status-history': Cells, heatmap: Cells, bargauge: Bars, timeseries: Graph,
};

function Body({ panel, data, width, height }) {
  if (!data.length || data.every((frame) => !frame.length)) {
    DRAWN[panel.id] = 'empty';
    const style = { color: theme.colors.text.secondary, textAlign: 'center', paddingTop: height / 2 - 12 };
    return <div style={style}>{panel.fieldConfig.defaults.noValue || 'No data'}</div>;
  }
  DRAWN[panel.id] = 'drawn';
  if (panel.type === 'table') {
    const { sortBy, cellHeight } = panel.options;
    return <Table data={data[0]} width={width} height={height} columnMinWidth={60} initialSortBy={sortBy} cellHeight={cellHeight} />;
  }
  const Kind = KINDS[panel.type];
  if (!Kind) throw new Error(`no drawing of ${panel.type}`);
  return <Kind panel={panel} data={data} width={width} height={height} />;
}

class Guard extends React.Component {
  constructor(properties) {
    super(properties);
    this.state = {};
  }

  static getDerivedStateFromError(error) {
    return { error };
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    DRAWN[this.props.panel.id] = String(error.stack).slice(0, 400);
    return <pre style={{ color: 'red', fontSize: 10, whiteSpace: 'pre-wrap' }}>{DRAWN[this.props.panel.id]}</pre>;
  }
}

function Panel({ panel }) {
  const [data, setData] = React.useState(null);
  const { x, y, w, h } = panel.gridPos;
  const width = w * CELL - 8;
  const height = h * ROW - 8;
  React.useEffect(() => {
    if (panel.type === 'row' || panel.type === 'text') return;
    transformDataFrame(panel.transformations || [], frames(panel)).subscribe((made) => {
      const { fieldConfig } = panel;
      setData(applyFieldOverrides({
        data: made, fieldConfig, fieldConfigRegistry: registry, replaceVariables: asIs, theme, timeZone: 'browser' }));
    });
  }, [panel]);
  const style = { position: 'absolute', left: 4 + x * CELL, top: 4 + y * ROW, width, height };
  if (panel.type === 'row') {
    return <div style={{ ...style, color: theme.colors.text.primary, fontWeight: 500, paddingTop: 8 }}>{`⌄ ${panel.title}`}</div>;
  }
  return (
    <div style={style}>
      <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
        {(inner, high) => (data
          ? <Guard panel={panel}><Body panel={panel} data={data} width={inner} height={high} /></Guard>
          : <div>{panel.options?.content}</div>)}
      </PanelChrome>
    </div>
  );
}

const { panels } = DATA.dashboard;
const tall = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * ROW + 20;
const style = document.createElement('style');
style.textContent = `.uplot,.uplot *{box-sizing:border-box}.uplot{font-family:system-ui;line-height:1.5;width:min-content}
.u-wrap{position:relative;user-select:none}.u-over,.u-under{position:absolute}.u-under{overflow:hidden}
.uplot canvas{display:block;position:relative;width:100%;height:100%}.u-axis{position:absolute}
.u-legend,.u-select,.u-cursor-x,.u-cursor-y,.u-cursor-pt{display:none}`;
document.head.append(style);
document.body.style.cssText = `margin:0;background:${theme.colors.background.canvas};width:${DATA.width}px;height:${tall}px;`
  + 'position:relative;font-family:Inter,Helvetica,Arial,sans-serif;font-size:14px';
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
  </ThemeContext.Provider>,
);
